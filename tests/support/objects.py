"""The part of the vocabulary that is not about numbers: objects, functions, arrays and trees."""

import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpsco_jax import Problem, privacy
from dpsco_jax.geometry import domains
from dpsco_jax.privacy.dp_accounting import events
from dpsco_jax.privacy.pld import pairs
from dpsco_jax.problems import losses
from dpsco_jax.problems.objective import Example
from dpsco_jax.problems.users import UserData
from tests.support.kinds import FUNCTION, NUMBERS, OBJECT, TREE, Argument, Kind

USERS, ITEMS, DIM = 12, 3, 4
OBJECTIVE = losses.logistic(feature_bound=1.0, domain=domains.ball(2.0), ridge=0.1)
_FEATURES = np.random.default_rng(0).normal(size=(USERS, ITEMS, DIM)).astype(np.float32)
DATA = UserData(
    Example(jnp.asarray(_FEATURES), jnp.ones((USERS, ITEMS), jnp.float32)),
    jnp.ones((USERS, ITEMS), bool),
)
PROBLEM = Problem(OBJECTIVE, num_users=USERS, items_per_user=ITEMS, dim=DIM, distance=1.0)
BUDGET = privacy.Budget(1.0, 1e-5)
VECTOR = np.full(DIM, 0.1, np.float32)
VECTORS = np.full((USERS, DIM), 0.1, np.float32)


def named(kind: Kind, **values: object) -> dict[str, Argument]:
    return {name: kind(value) for name, value in values.items()}


OBJECTS: dict[str, Argument] = {
    **named(
        FUNCTION,
        sampler=None,
        trace=None,
        stop=None,
        gradient=lambda *_: VECTOR,
        hessian=lambda *_: np.eye(DIM),
        link=lambda *values: values[0],
        chunk_rows=lambda *_: VECTORS,
        chunk_sum=lambda *_: VECTOR,
        candidate=lambda *_: jnp.zeros(()),
        loss_of=privacy.gaussian,
        mechanism=lambda key, data: data,
        score=lambda output: output,
        eval_params=lambda state, params: params,
        of_stage=lambda stage: None,
    ),
    **named(
        OBJECT,
        objective=OBJECTIVE,
        problem=PROBLEM,
        budget=BUDGET,
        data=DATA,
        domain=domains.ball(2.0),
        loss=privacy.gaussian(2.0),
        losses=privacy.gaussian(2.0),
        event=events.gaussian(2.0),
        events=events.gaussian(2.0),
        pair=pairs.gaussian(2.0),
        model=OBJECTIVE.linear_model,
        ledger=privacy.open_ledger(NeighboringRelation.REPLACE_ONE),
        noise_correlation=None,
        term=None,
        mesh=None,
        sample=None,
    ),
    **named(
        NUMBERS,
        values=np.linspace(-0.5, 0.5, USERS).astype(np.float32),
        scores=np.arange(4.0, dtype=np.float32),
        point=VECTOR,
        points=VECTORS,
        rows=VECTORS,
        center_a=VECTOR,
        center_b=VECTOR,
        offset=VECTOR,
        shift=VECTOR,
        signs=np.ones(DIM, np.float32),
        weights=np.ones(USERS, np.float32),
        start=VECTOR,
        minimizer=VECTOR,
        eigenvalues=VECTOR,
        linear=VECTOR,
        scales=VECTOR,
        noisy=VECTOR,
        means=VECTOR,
        mean=0.1,
        spread=1.0,
        margin=0.1,
        label=1.0,
        features=VECTOR,
        other_anchor=VECTOR,
    ),
    **named(
        TREE,
        tree=VECTOR,
        vectors=VECTORS,
        vector=VECTOR,
        params=VECTOR,
        like=VECTOR,
        center=VECTOR,
        anchor=VECTOR,
    ),
}
