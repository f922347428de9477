"""A step of Opacus with ghost clipping, for an interpreter that has torch and opacus; see ``opacus_turns``.

What it computes: the models of ``models``, one step for every line on the standard input, whose processor
seconds are the answer. It imports nothing of this repository.

Source: Opacus 1.6, ``DPLossFastGradientClipping``.

Formal guarantee: none.

Cost: a step.
"""

import argparse
import sys
import time
import warnings

import torch
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (
    GradSampleModuleFastGradientClipping,
)
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn


def perceptron() -> nn.Module:
    """784-128-10."""
    return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def convolutional() -> nn.Module:
    """Two convolutions with pools, two dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.AvgPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.AvgPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _steps(name: str, number: int, private: bool):
    torch.manual_seed(0)
    model = perceptron() if name == "perceptron" else convolutional()
    shape = (784,) if name == "perceptron" else (1, 28, 28)
    inputs, labels = torch.randn(number, *shape), torch.randint(0, 10, (number,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    if private:
        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        optimizer = DPOptimizerFastGradientClipping(
            optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=number
        )
        criterion = DPLossFastGradientClipping(model, optimizer, criterion)

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    """Answers every line with the seconds of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("perceptron", "convolutional"))
    parser.add_argument("number", type=int, help="of examples")
    parser.add_argument("--public", action="store_true", help="the step without privacy")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    step = _steps(arguments.model, arguments.number, not arguments.public)
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        before = time.process_time()
        step()
        print(time.process_time() - before, flush=True)


if __name__ == "__main__":
    main()
