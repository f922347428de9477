"""Plans whose numbers somebody has edited claim what they run, or claim nothing, or are refused.

Rows are those of ``private_table``, each with an account of what its plan runs that owes nothing to the
package's curves (``tests.support.edited_plans``). Every number of the plan is multiplied by 10, 0.1, NaN and
-1, every size by 2 and 1/2, those of phases together and of the last phase alone. Whatever is not refused
with a ``ValueError`` must have a loss and a certificate that are at least the account.
"""

import math

import jax
import pytest

from dpsco_jax import privacy
from dpsco_jax.privacy.releases import GaussianReleases
from tests.solvers.private_table import DELTA, ROWS
from tests.support import edited_plans as edits

_ROUNDING = 2e-3  # of the accounts


def _gaussian(releases, delta):
    if releases.batch_size == releases.population_size and releases.sampling == "fixed":
        return edits.everybody(releases.noise_multiplier, releases.num_steps, delta)
    rate = releases.batch_size / releases.population_size
    run = (releases.noise_multiplier, rate, releases.num_steps)
    return edits.sampled([run], delta, releases.sampling == "poisson")


def _sgd(plan, delta):
    rate = plan.batch_size / plan.num_users
    if rate == 1.0 and plan.sampling != "poisson":
        return edits.everybody(plan.noise_multiplier, plan.num_steps, delta)
    run = (plan.noise_multiplier, rate, plan.num_steps)
    return edits.sampled([run], delta, plan.sampling == "poisson")


def _releases(plan, delta):
    of = _gaussian if isinstance(plan.releases, GaussianReleases) else edits.tested
    return of(plan.releases, delta)


def _worst(parts):
    """Of parts on users of their own."""
    return lambda plan, delta: max(_releases(part, delta) for part in parts(plan))


def _phased_sgd(plan, delta):
    of = {
        True: lambda: edits.everybody(plan.noise_multiplier, 1, delta),
        False: lambda: edits.tested(plan.releases, delta),
    }
    return max(of[clipped]() for clipped in set(plan.clipped))


def _phased_erm(plan, delta):
    found = []
    for phase in plan.parts:
        steps = min(phase.num_steps, phase.releases.num_queries)
        found.append(edits.everybody(phase.releases.noise_multiplier, steps, delta))
    return max(found)


def _run_of(part):
    return (part.noise_multiplier, part.batch_size / part.num_users, part.num_steps)


def _composite(plan, delta):
    """Of stages on the same users, or of phases on users of their own."""
    if not hasattr(plan, "parts"):
        return edits.sampled([_run_of(plan)], delta)
    if plan.on_blocks:
        return max(_composite(part, delta) for part in plan.parts)
    return edits.sampled([_run_of(part) for part in plan.parts], delta)


# The rows of ``private_table`` that are edited, with their accounts.
ACCOUNTS = {
    **dict.fromkeys(("sgd, poisson", "sgd, fixed", "sgd, full"), _sgd),
    "private_ac_sa, sampled": lambda plan, delta: edits.sampled([_run_of(plan)], delta),
    **dict.fromkeys(("multipass_sgd, tested", "multipass_sgd, clipped"), _releases),
    **dict.fromkeys(("accelerated_sgd, tested", "accelerated_sgd, clipped"), _releases),
    "accelerated_phased_erm, tested": _worst(lambda plan: plan.parts),
    "accelerated_strongly_convex": _worst(
        lambda plan: [phase for block in plan.parts for phase in block.parts]
    ),
    "localized_sgd": _worst(lambda plan: plan.parts),
    "phased_sgd, tested": _phased_sgd,
    "phased_erm": _phased_erm,
    "erm, restarts": _composite,
    "sco, localization": _composite,
    "auto": lambda plan, delta: _sgd(plan.chosen, delta),
}


def _spent(row):
    """The loss of a run; the plan's numbers are traced, and nothing but the loss is computed."""
    data = row.data()
    return jax.jit(lambda plan: row.solve(jax.random.key(0), plan, data).privacy)


def _certified(plan):
    try:
        return plan.certificate()
    except ValueError:
        return None


def _require_cover(row, label, plan, spent):
    account, delta = ACCOUNTS[row.name], row.settings.get("delta", DELTA)
    known = account(plan, delta)
    claimed = float(privacy.epsilon(spent, delta))
    assert claimed >= (1 - _ROUNDING) * known, f"{label}: the loss says {claimed}, true is {known}"
    certificate = _certified(plan)
    if certificate is None:
        return
    known = account(plan, certificate.delta) if 0 < certificate.delta < 1 else 0.0
    claimed = certificate.epsilon
    assert claimed >= (1 - _ROUNDING) * known, f"{label}: certified {claimed}, true is {known}"


# What the others release is released by these as well: they wait for `make test-slow`. Every row of
# `private_table` is edited in `test_contract`, and compared with what its run is charged.
_SIZED_AT_ONCE = {
    *("sgd, full", "multipass_sgd, tested", "multipass_sgd, clipped", "phased_sgd, tested"),
    *("phased_erm", "auto"),
}
_AT_ONCE = {"sgd, poisson", *_SIZED_AT_ONCE}


def _rows(at_once):
    rows = [row for row in ROWS if row.name in ACCOUNTS]
    later = [[pytest.mark.slow] * (row.name not in at_once) for row in rows]
    rows = zip(rows, later, strict=True)
    return pytest.mark.parametrize("row", [pytest.param(r, id=r.name, marks=m) for r, m in rows])


@_rows(_AT_ONCE)
def test_claims_cover_what_edited_numbers_run(row):
    plan, run = row.plan(), _spent(row)
    _require_cover(row, "as planned", plan, run(plan))
    account, delta = ACCOUNTS[row.name], row.settings.get("delta", DELTA)
    as_planned = account(plan, delta)
    assert 0.3 * float(plan_epsilon(plan)) < as_planned <= float(plan_epsilon(plan)) * 1.01
    lost = 0
    for label, edited in edits.edited_numbers(plan):
        _require_cover(row, label, edited, run(edited))
        lost += account(edited, delta) > 1.1 * as_planned
    assert lost >= 2, "no edit has cost anything: the account sees nothing"


@_rows(_SIZED_AT_ONCE)
def test_claims_cover_what_edited_sizes_run(row):
    plan = row.plan()
    refused = 0
    for label, make in edits.edited_sizes(plan):
        try:
            edited = make()
            spent = _spent(row)(edited)
        except ValueError:
            refused += 1
            continue
        _require_cover(row, label, edited, spent)
    assert refused >= 1, "a wrong number of users runs"


def plan_epsilon(plan):
    """The budget of a plan, or of the plan that ``auto`` has chosen."""
    return getattr(plan, "chosen", plan).epsilon


def test_the_account_of_samples_is_right_where_a_closed_form_is():
    for steps, sigma in ((1, 1.0), (9, 4.0)):
        exact = edits.everybody(sigma, steps, 1e-5)
        assert edits.sampled([(sigma, 1.0, steps)], 1e-5) == pytest.approx(exact, rel=2e-3)
        assert edits.sampled([(sigma, 0.1, steps)], 1e-5) < exact
    assert edits.everybody(math.nan, 1, 1e-5) == math.inf
