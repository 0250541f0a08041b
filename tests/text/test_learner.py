"""The learner of language models: its roles, its numbers, its state."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lib.agent.kl import k3
from lib.agent.losses import surrogate_loss, value_error
from lib.agent.returns import explained_variance
from lib.agent.sequences import answer_advantages, token_rewards
from lib.learner import ALONE, Alone
from lib.preferences.answers import distinct_2
from lib.text import learner as learner_module
from lib.text.evaluation import AnswersMeasure
from lib.text.layers import above, between, log_probs_of, token_log_probs
from lib.text.roles import spread
from lib.training.ranks import joined
from tests.text.tiny import FAMILIES, save_tiny, tiny_learner
from tests.training.test_ranks import in_ranks


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_stays_bit_equal_and_the_lower_layers_are_its_own(family: str, tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, family)
    before = copy.deepcopy(learner.language.network.state_dict())
    rated = copy.deepcopy(learner.roles.reward.members[0].network.state_dict())
    for _ in range(3):
        learner.advance()
    for now, then in ((learner.language.network, before), (learner.roles.reward.members[0].network, rated)):
        assert all(torch.equal(value, then[name]) for name, value in now.state_dict().items())
    moved = {
        name
        for name, value in learner.policy().network.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert moved == {
        name
        for name in before
        if name == "model.norm.weight" or name.startswith(("model.layers.2", "model.layers.3"))
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_roles_on_the_trunk_say_what_whole_models_say(family: str, tmp_path: Path) -> None:
    """Log-probabilities of actor and reference, the exact KL and the critic, of each answer alone."""
    learner = tiny_learner(tmp_path, family, temperature=0.7, lr=1e-3)
    learner.advance()
    answers = learner.answer(learner._prompts, [7], each=6)
    assert answers is not None
    seen = learner.roles.experience(answers)
    assert seen.mask.sum(0).tolist() == [len(answer.tokens) for answer in seen.answers]
    assert len({len(answer.tokens) for answer in seen.answers}) > 1
    assert learner.roles.critic is not None
    critic = learner.roles.critic.network
    for b, answer in enumerate(seen.answers):
        prompt, tokens, n = answer.prompt_tokens.tolist(), answer.tokens.tolist(), len(answer.tokens)
        for network, found in (
            (learner.policy().network, seen.log_probs),
            (learner.language.network, seen.reference),
        ):
            with torch.no_grad():
                expected = token_log_probs(network, prompt, tokens, 0.7)
            torch.testing.assert_close(found[:n, b], expected, atol=2e-5, rtol=1e-4)
            assert not found[n:, b].any()
        np.testing.assert_allclose(seen.log_probs[:n, b].numpy(), answer.log_probs, atol=1e-4)
        whole = torch.tensor([[*prompt, *tokens]])
        with torch.no_grad():
            ours, theirs = (
                F.log_softmax(network(input_ids=whole).logits[0, len(prompt) - 1 : -1] / 0.7, -1)
                for network in (learner.policy().network, learner.language.network)
            )
            base = learner.language.network.model
            states = between(base, 0, 1)(inputs_embeds=base.embed_tokens(whole), use_cache=False)
            states = critic.layers(inputs_embeds=states.last_hidden_state).last_hidden_state
            values = (critic.head(states)[0, len(prompt) - 1 : -1, 0] - 0.5) / 2
        torch.testing.assert_close(
            seen.exact_kl[:n, b],
            F.kl_div(theirs, ours, reduction="none", log_target=True).sum(-1),
            atol=2e-5,
            rtol=1e-3,
        )
        torch.testing.assert_close(seen.values[:n, b], values, atol=2e-5, rtol=1e-4)
        assert seen.scores[b].item() == pytest.approx(learner.roles.reward.rate([answer])[0], abs=1e-5)


@pytest.mark.parametrize("rank", [0, 3])
def test_in_bf16_the_kl_to_the_reference_begins_at_0(tmp_path: Path, rank: int) -> None:
    learner = tiny_learner(tmp_path, bf16=True, rank=rank)
    answers = learner.answer(learner._prompts, [7])
    assert answers is not None
    seen = learner.roles.experience(answers)
    assert torch.equal(seen.log_probs, seen.reference)
    assert not seen.exact_kl.any()


def test_a_critic_begins_as_the_reward_model(tmp_path: Path) -> None:
    """Its value before the last token is what the reward model says of the answer without it."""
    learner = tiny_learner(tmp_path)
    answers = learner.answer(learner._prompts, [7])
    assert answers is not None
    seen = learner.roles.experience(answers)
    for b, answer in enumerate(seen.answers):
        n = len(answer.tokens)
        if n > 1:
            shorter = dataclasses.replace(answer, tokens=answer.tokens[:-1])
            assert seen.values[n - 1, b].item() == pytest.approx(
                learner.roles.reward.rate([shorter])[0], abs=1e-5
            )


@pytest.mark.parametrize("algo", ["ppo", "rloo"])
def test_micro_batches_make_the_steps_of_whole_ones(algo: str, tmp_path: Path) -> None:
    tops = []
    for micro in (12, 5):
        learner = tiny_learner(tmp_path / str(micro), algo=algo, answers=2, micro_batch=micro, lr=1e-3)
        learner.advance()
        tops.append(learner.state()["top"])
    for name, value in tops[0].items():
        torch.testing.assert_close(tops[1][name], value, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_state_continues_bit_for_bit(rank: int, tmp_path: Path) -> None:
    whole, first = (tiny_learner(tmp_path / name, kl_target=1.0, rank=rank) for name in "ab")
    for _ in range(4):
        whole.advance()
    for _ in range(2):
        first.advance()
    again = tiny_learner(tmp_path / "c", kl_target=1.0, rank=rank)
    again.load_state(copy.deepcopy(first.state()))
    for _ in range(2):
        again.advance()
    assert (again.steps, again.updates) == (whole.steps, whole.updates) == (48, 4)
    assert torch.equal(again.kl_coef, whole.kl_coef)
    assert again.kl_coef != 0.05
    for (name, one), (_, other) in zip(whole.weights(), again.weights(), strict=True):
        assert torch.equal(one, other), name


def test_in_bf16_the_trained_weights_are_float32_and_sampling_takes_them_up(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, bf16=True, lr=1e-4)
    before = copy.deepcopy(learner.language.network.state_dict())
    scalars = learner.advance().scalars
    assert all(bool(torch.isfinite(torch.as_tensor(value))) for value in scalars.values())
    # Steps too small for bf16 are kept, and what samples is what is trained, rounded.
    top, sampled = learner.state()["top"], above(learner.policy().network.model, 2).state_dict()
    assert all(value.dtype == torch.float32 for value in top.values())
    assert all(torch.equal(sampled[name], value.bfloat16()) for name, value in top.items())
    assert any(not torch.equal(value, value.bfloat16().float()) for value in top.values())
    now = learner.language.network.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in now.items())


def test_the_critic_warms_up_alone_and_what_is_cut_off_has_a_fixed_score(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, critic_warmup=1, unfinished_score=-1.0)
    before = copy.deepcopy(dict(learner.weights()))
    learner.advance()
    for name, value in learner.weights():
        assert torch.equal(value, before[name]) == (not name.startswith("critic")), name
    learner.advance()
    assert not any(torch.equal(value, before[name]) for name, value in learner.weights())


def test_the_passes_descend_means_over_tokens(tmp_path: Path) -> None:
    """Of answers by a policy and a critic that have moved since, in micro-batches; the learning rate is 0."""
    flags: dict[str, Any] = {"unfinished_score": -1.0, "grad_clip": 0.0, "gae_lambda": 0.7}
    learner = tiny_learner(tmp_path, tokens=24, minibatches=1, micro_batch=5, lr=0.0, **flags)
    answers = learner.answer(learner._prompts, [7], each=4)
    assert answers is not None
    seen = learner.roles.experience(answers)
    mask, generator = seen.mask, torch.Generator().manual_seed(0)
    then = dataclasses.replace(
        seen,
        log_probs=seen.log_probs + 0.3 * torch.randn(mask.shape, generator=generator),
        reference=seen.reference + torch.randn(mask.shape, generator=generator),
        values=seen.values + torch.randn(mask.shape, generator=generator),
    )
    parts = learner.learn(then)

    finished = torch.tensor([answer.finished for answer in answers])
    assert 0 < finished.sum() < len(answers)
    scores = torch.where(finished, seen.scores, -1.0)
    rewards = token_rewards(scores, then.log_probs - then.reference, mask, 0.05, 5.0)
    worth, returns = answer_advantages("ppo", rewards, then.values, mask, 1, 1.0, 0.7)
    assert learner.roles.critic is not None
    now = spread(learner.roles.log_probs(seen.actor, seen.tokens.T[mask.T]), mask)
    values = spread(learner.roles.critic.values(seen.critic), mask)
    moved = now - then.log_probs
    each = {
        "loss_policy": surrogate_loss(moved, worth, 0.2),
        "loss_value": value_error(values, then.values, returns, 0.2),
        "approx_kl": moved.exp() - 1 - moved,
        "clip_fraction": (moved.exp() - 1).abs().gt(0.2).float(),
    }
    each["loss_total"] = each["loss_policy"] + 0.5 * each["loss_value"]
    for name, tokens in each.items():
        assert float(parts[name]) == pytest.approx(tokens[mask].mean().item(), rel=1e-3, abs=1e-5), name
    assert 0.1 < float(parts["clip_fraction"]) < 0.9
    weights = [weight for _, weight in learner.weights()]
    gradients = torch.autograd.grad(each["loss_total"][mask].mean(), weights)
    for weight, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=1e-5)
    norm = torch.nn.utils.get_total_norm(gradients)
    assert float(parts["grad_norm"]) == pytest.approx(norm.item(), rel=1e-3)

    assert float(parts["learned"]) == pytest.approx(seen.scores.mean().item())
    assert float(parts["tokens"]) == pytest.approx(np.mean([len(answer.tokens) for answer in answers]))
    assert float(parts["finished"]) == finished.float().mean()
    assert float(parts["kl_ref"]) == pytest.approx(seen.exact_kl[mask].sum().item() / len(answers), abs=1e-5)
    explained = explained_variance(then.values, returns, mask)
    assert float(parts["explained_variance"]) == pytest.approx(explained.item(), rel=1e-4)


def test_scores_are_clipped_and_the_kl_estimated_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[torch.Tensor] = []

    def noted(algo: str, rewards: torch.Tensor, *rest: Any, **flags: Any) -> Any:
        paid.append(rewards)
        return answer_advantages(algo, rewards, *rest, **flags)

    monkeypatch.setattr(learner_module, "answer_advantages", noted)
    learner = tiny_learner(tmp_path, lr=0.0, score_clip=2.0, kl_estimator="k3")
    answers = learner.answer(learner._prompts, [7], each=4)
    assert answers is not None
    seen = learner.roles.experience(answers)
    then = dataclasses.replace(seen, scores=torch.linspace(-9, 9, 12), reference=seen.reference + 0.5)
    learner.learn(then)
    divergence = k3(then.log_probs, then.reference)
    torch.testing.assert_close(paid[0], token_rewards(then.scores, divergence, then.mask, 0.05, 2.0))


def test_an_update_makes_all_its_passes(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, algo="rloo", answers=2, epochs=3, minibatches=2)
    learner.advance()
    assert next(iter(learner._optimizer.state.values()))["step"] == 6


def test_a_gradient_is_clipped_to_its_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = tiny_learner(tmp_path, grad_clip=0.01, lr=1.0, epochs=1, minibatches=1)
    plain = torch.optim.SGD([weight for _, weight in learner.weights()], lr=1.0)
    monkeypatch.setattr(learner, "_optimizer", plain)
    before = copy.deepcopy(dict(learner.weights()))
    learner.advance()
    moves = [(weight - before[name]).detach() for name, weight in learner.weights()]
    assert torch.nn.utils.get_total_norm(moves).item() == pytest.approx(0.01, rel=1e-3)


def test_the_price_of_divergence_waits_for_the_critic(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, critic_warmup=1, kl_target=1.0)
    learner.advance()
    assert learner.kl_coef == pytest.approx(0.05)
    learner.advance()
    assert learner.kl_coef < 0.05


def test_a_resumed_critic_goes_on_warming_up_to_a_new_reward_model(tmp_path: Path) -> None:
    first, second = (tiny_learner(tmp_path / name, critic_warmup=2) for name in "ab")
    first.updates = 5
    assert first._acts()
    first.use_reward(first.roles.reward)
    second.load_state(first.state())
    assert not second._acts()


def test_the_learning_rate_falls_to_0_where_asked(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, algo="rloo", answers=2, rollout=2, tokens=2, lr_decay=2, lr=0.5)
    assert [float(learner.advance().scalars["lr"]) for _ in range(4)] == [0.5, 0.25, 0, 0]


def test_all_prompts_have_their_turn_before_any_comes_again(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, rollout=4, algo="rloo", answers=2)
    asked = []
    for learner.updates in range(6):
        asked += [prompt.prompt for prompt in learner._next_prompts()]
    assert len(asked) == 12
    for at in range(0, 12, 3):
        assert sorted(asked[at : at + 3]) == ["p0", "p1", "p2"]


CASES: dict[str, dict[str, Any]] = {
    "ppo": {"kl_target": 1.0, "critic_warmup": 1, "minibatches": 3},
    "grpo": {"algo": "grpo", "answers": 2, "minibatches": 8},
}
"""Five prompts an update: 2 and 3 of them for each of two processes. In eight minibatches one of them may have nothing."""


def learns(ranks: Alone, folder: Path, case: str) -> dict[str, Any]:
    each = CASES[case].get("answers", 1)
    learner: Any = tiny_learner(folder, ranks=ranks, lr=0.3, rollout=5 * each, **CASES[case])
    # Adam's steps do not tell a small gradient from noise.
    learner._optimizer = torch.optim.SGD([weight for _, weight in learner.weights()])
    said = [learner.advance().scalars for _ in range(3)]
    scalars = [{name: float(value) for name, value in scalars.items()} for scalars in said]
    weights = {name: weight.detach() for name, weight in learner.weights()}
    return {"weights": weights, "said": scalars, "steps": learner.steps}


def learns_all(root: Path) -> dict[str, dict[str, Any]]:
    with joined("cpu") as ranks:
        return {case: learns(ranks, root, case) for case in CASES}


@pytest.mark.slow
def test_two_ranks_learn_what_one_process_learns(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path / "model")  # Transformers saves nothing in a second process
    first, second = in_ranks(tmp_path / "two", learns_all, folder)
    for case in CASES:
        one = learns(ALONE, folder, case)
        assert first[case]["steps"] == second[case]["steps"] == one["steps"]
        for name, right in one["weights"].items():
            torch.testing.assert_close(first[case]["weights"][name], right, rtol=1e-6, atol=1e-6)
            assert torch.equal(first[case]["weights"][name], second[case]["weights"][name]), name
        for of_rank in (first, second):
            for now, right in zip(of_rank[case]["said"], one["said"], strict=True):
                assert now == pytest.approx(right, rel=1e-4, abs=1e-5)


def test_log_probs_by_chunks_are_those_of_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, states = torch.nn.Linear(8, 50, bias=False), torch.randn(30, 8, requires_grad=True)
    tokens = torch.randint(50, (30,))
    expected = F.log_softmax(head(states) / 0.5, -1)[torch.arange(30), tokens]
    [gradient] = torch.autograd.grad(expected.square().sum(), states)
    monkeypatch.setattr("lib.text.layers._AT_ONCE", 7)
    found = log_probs_of(head, states, tokens, 0.5)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), states)[0], gradient)


def test_distinct_pairs_of_words() -> None:
    assert distinct_2(["a b a b", "a b"]) == pytest.approx(2 / 4)
    assert distinct_2(["a", ""]) == 1


def test_an_evaluation_says_what_the_best_of_n_answers_of_the_reference_is_worth(tmp_path: Path) -> None:
    learner = tiny_learner(tmp_path, algo="rloo", answers=2)
    prompts = learner._prompts
    measure = AnswersMeasure(learner, prompts, {"long": lambda a: len(a.tokens)}, 1, 3, seed=5)
    first, _ = measure(None, None)
    drawn = learner.answer(prompts, [10_000, 5, 3], 3, reference=True)
    assert drawn is not None
    pay = learner.roles.reward.rate
    best = [max((a for a in drawn if a.prompt == p.prompt), key=lambda a: pay([a])[0]) for p in prompts]
    assert first.overall["best_of_3"] == np.mean([len(answer.tokens) for answer in best])
    assert first.overall["best_of_3_learned"] == pytest.approx(pay(best).mean(), abs=1e-5)
    learner.advance()
    again, _ = measure(None, None)
    assert again.overall["best_of_3"] == first.overall["best_of_3"]
    assert AnswersMeasure(learner, prompts, {}, 1, 1, seed=5)(None, None)[0].overall.keys() == {"distinct_2"}


def test_the_answers_to_one_prompt_are_one_value_of_an_evaluation(tmp_path: Path) -> None:
    """They are alike, so an interval over all answers would be too narrow."""
    learner = tiny_learner(tmp_path, algo="rloo", answers=2)
    prompts = learner._prompts
    found, _ = AnswersMeasure(learner, prompts, {"long": lambda a: len(a.tokens)}, 3, 1, seed=5)(None, None)
    drawn = learner.answer([prompt for prompt in prompts for _ in range(3)], [10_000, 5])
    assert drawn is not None
    each = [np.mean([len(a.tokens) for a in drawn if a.prompt == p.prompt]) for p in prompts]
    assert found.scores.tolist() == pytest.approx(each)
    assert found.steps.tolist() == pytest.approx(each)
    assert str(found).endswith(f"(95 %, {len(prompts)} prompts)")
