"""The learner of language models against the best policy there is."""

import numpy as np
import pytest
import torch

from lib.text.learner import LearnerSettings, TextLearner
from tests.text.word_world import LENGTH, PROMPT, Optimum, Table, log_policy, word_model


@pytest.mark.slow(12)
@pytest.mark.parametrize(
    ("algo", "answers", "rank", "updates", "lr"),
    [
        ("ppo", 1, 0, 20, 6e-3),
        ("reinforce", 1, 0, 30, 4e-3),
        ("rloo", 4, 0, 24, 4e-3),
        ("grpo", 4, 0, 24, 4e-3),
        ("rloo", 4, 16, 24, 1e-2),
    ],
)
def test_it_reaches_the_best_policy_there_is(
    algo: str, answers: int, rank: int, updates: int, lr: float
) -> None:
    """95 % of max E[r] − β KL(π ‖ π_ref), which π* ∝ π_ref exp(r/β) attains, over all 64,000 answers.

    Layers learn, or where there is a rank, adapters.
    """
    coef = 0.08
    model = word_model()
    reward = Table(model)
    reference = log_policy(model.network)
    assert np.exp(reference).sum() == pytest.approx(1)
    best = Optimum(reference, reward.table, coef)
    assert best.objective(reference) < 0.25 * best.best
    torch.manual_seed(0)
    learner = TextLearner(
        *(model, 0, reward, [PROMPT]),
        LearnerSettings(
            algo=algo,
            answers=answers,
            rollout=1024,
            tokens=LENGTH,
            batch_size=1024,
            micro_batch=1024,
            lr=lr,
            lr_decay=updates,
            minibatches=4,
            kl=coef,
            score_clip=100,
        ),
        rank=rank,
    )
    kls = [best.kl(reference)]
    for _ in range(2):
        for _ in range(updates // 2):
            learner.advance()
        kls.append(best.kl(log_policy(learner.policy().network)))
    assert kls == sorted(kls, reverse=True)
    assert best.objective(log_policy(learner.policy().network)) >= 0.95 * best.best
    assert np.array_equal(log_policy(model.network), reference)
