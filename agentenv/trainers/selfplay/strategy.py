"""Self-play: one game of several roles for each start task, played as its data in ``games.py`` says.

What is done otherwise than in the published code of SSP, and why:

1. A verifier that fails accepts nothing (there a failed judge accepts), and a failed scorer masks (there it pays 0).
2. A judge's verdict is read from a line of its own; there "incorrect" holds "correct".
3. Success is a right answer without penalty; there a penalised reward above 0 counts as one.
4. Golds are checked to be text when a task is posed; there a list made every proposal fail unseen.
5. Ids are those that were sampled, stop strings included where the policy wrote them.
"""

import math
import random
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from agentenv.core.concurrency.deadlines import within
from agentenv.core.episodes import failed_episode
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, run_episode
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Task
from agentenv.envs.search.page_format import as_question
from agentenv.envs.search.proposals import Proposal, QuestionRules, as_page
from agentenv.envs.search.self_play import (
    PROPOSER_PROMPT,
    REFERENCE,
    SPAM_FACTOR,
    GameSetup,
    RoleTurn,
    SearchSolver,
    is_spam,
)
from agentenv.errors import ConfigurationError, EndpointFault, EnvFault, JudgeFault, UnknownName, check_known
from agentenv.evaluation.llm_judge import Judge
from agentenv.evaluation.rubrics import get_rubric
from agentenv.policies.policy_spec import is_endpoint, is_program, make_endpoint_policy, make_program_policy
from agentenv.trainers.selfplay.game_state import GameState, fitting, masked, paid_by_game, without_tokens
from agentenv.trainers.selfplay.games import Game, GameTurn, agent_names, get_game
from agentenv.trainers.selfplay.question_checks import AGREED, CHECKS, UNVERIFIED
from agentenv.trainers.selfplay.role_rewards import ADMISSIONS, CHALLENGES, RATES, REWARDS, Challenge
from agentenv.trainers.strategies.demonstrations import spell
from agentenv.trainers.strategies.reflectors import other_policy
from agentenv.trainers.strategies.rollout_context import RolloutContext, Round, run_rounds

_ROUND_SEEDS = 1 << 31  # seeds of starts are below; each round of a game has its own
_judge_at = cache(make_endpoint_policy)
"""The judge behind an address, one for the whole run: it knows what it has used, and that it was reached."""


@dataclass(frozen=True, kw_only=True)
class SelfPlayStrategy:
    """Plays a game of several roles about one topic, in ``SearchSolver`` environments.

    Search Self-Play, Lu et al. 2025, arXiv:2510.18821; other games cite their papers in ``games.py``. The group contains the
    trajectories of each role that has a reward, with the role's name in ``info["role"]``. ``info["game"]`` of the first one
    says what happened to the question, for the sampler that keeps the pool.
    """

    game: str = "ssp"
    """Row of ``GAMES``."""
    checks: tuple[str, ...] = ("verify",)
    """The optional moves that are played; of ``ssp``: ``verify``, ``guess`` (closed book, against trivial questions) and
    ``compete`` (searches the corpus for competing answers)."""
    votes: int = 1
    """Episodes of each of them, every one under a shuffle of its own; all have to agree."""
    noise: int = 4
    """Passages of other searches among those that a verifier is shown; SSP takes all pages of 4 other proposers."""
    verifier: Literal["reads", "searches"] = "reads"
    """Whether it is shown the passages at once, as published, or searches among them as a solver does; where the whole
    corpus is asked, it then searches that."""
    confidence: float = 0.0
    """Least probability, by the log-probs recorded with its tokens, at which a verifier has written its whole episode; what
    is less likely has not agreed. 0 asks for none."""
    searches: tuple[int, int] = (1, 2)
    """Least and most searches that a proposer is asked for, where its seed names no number in ``data["searches"]``."""
    attempts: int = 1
    """Proposals asked for before a question of the pool takes their place."""
    reward: Challenge = "challenge"
    """The proposer's reward: ``challenge`` (1 - s) or ``intermediate`` (4 s (1 - s))."""
    penalty: float = 0.0
    """Reward of a refused proposal (SSP: 0 in its script, -1 in its configuration)."""
    rules: dict[str, int | bool] = field(default_factory=dict)
    """Bounds of the rules, by the names of the fields of ``QuestionRules``; ``searches`` is what the episode was asked for,
    if it is not named here (SSP: 2, whatever was asked)."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Opening messages by move, in place of the game's own."""
    role_policies: dict[str, str] = field(default_factory=dict)
    """Who plays a role in place of the trained policy: ``tiny``, ``hf:PATH``, ``openai:MODEL@URL``, or the function from a
    message to the reply that ``python:MODULE:NAME`` names; not trained."""
    temperatures: dict[str, float] = field(default_factory=dict)
    """At which a role samples, where it is not ``rollout.temperature`` (SSP: .8 of the proposer), or 0 of verifiers and
    judges (SSP: .1). Its tokens carry ``context_mismatch`` then: their log-probs are those of another distribution."""
    agents: int = 0
    """Agents of which one is drawn by lot for each episode that is paid (CoMAS: 4), in place of roles. ``agent_1`` and so on
    can be named in ``second.roles`` and ``role_policies``; a role that is named in ``role_policies`` is drawn for nobody."""
    evaluations: int = 1
    """Critiques of each solution in the games of CoMAS, each an episode of its own and followed by a score; a solution
    is paid the mean of its scores."""
    imitate: bool = False
    """Whether the answer that a seed has, after the ``thought`` of its data where there is one, is learned by the supervised
    step as the reply of the game's move ``taught``."""
    judge: str = ""
    """``openai:MODEL@URL`` is asked where the answer of a verifier or of a solver who searches is not the gold by exact
    match; empty asks nobody."""

    def __post_init__(self) -> None:
        game = get_game(self.game, self.evaluations, self.agents)
        turns = {turn.name: turn for turn in game.turns}
        for name in self.checks:
            if name not in turns or not turns[name].optional:
                raise UnknownName.among(
                    f"check of the game {self.game!r}:", name, [m for m in turns if turns[m].optional]
                )
        for name in self.prompts:
            check_known(f"move of the game {self.game!r}:", name, turns)
        roles = {turn.role for turn in game.turns} | set(agent_names(self.agents))
        for role in (*self.role_policies, *self.temperatures):
            check_known(f"role of the game {self.game!r}:", role, roles)
        for player in filter(is_program, self.role_policies.values()):
            make_program_policy(player)
        if min(self.temperatures.values(), default=0.0) < 0:
            raise ConfigurationError(f"self_play needs temperatures of at least 0, not {self.temperatures}")
        if self.agents < 0 or (self.imitate and not game.taught):
            raise ConfigurationError(
                f"self_play needs agents of at least 0, not {self.agents}, and imitate = false in the game {self.game!r} "
                "unless a seed's answer is the reply to one of its moves"
            )
        if self.judge and not is_endpoint(self.judge):
            raise ConfigurationError(
                f"self_play asks a judge behind an address, openai:MODEL@URL, not {self.judge!r}"
            )
        low, high = self.searches
        if not 0 < low <= high or min(self.votes, self.attempts) < 1 or self.noise < 0:
            raise ConfigurationError(
                f"self_play needs 1 <= least <= most searches, votes and attempts of at least 1 and noise of at least 0, "
                f"not {self.searches}, {self.votes}, {self.attempts} and {self.noise}"
            )
        verifier = self.role_policies.get("verifier", "")
        if not 0 <= self.confidence < 1 or (self.confidence and is_endpoint(verifier)):
            raise ConfigurationError(
                f"self_play needs 0 <= confidence < 1, and 0 for a verifier behind an address, which records no log-probs: "
                f"not {self.confidence} with the verifier {verifier!r}"
            )
        fewest = _rules(self.rules, low).searches
        if low < fewest:
            raise ConfigurationError(
                f"self_play asks proposers for {low} searches or more (searches = {self.searches}), and rules refuse "
                f"fewer than {fewest}: raise searches, or lower rules.searches"
            )

    def check_tasks(self, tasks: Sequence[Task]) -> None:
        """Refuses seeds whose number of searches is none, or is one that the rules would refuse.

        Raises:
            ConfigurationError: there is one.
        """
        if not any(turn.kind == "propose" for turn in get_game(self.game, self.evaluations).turns):
            return
        for task in tasks:
            number = task.data.get("searches", self.searches[0])
            whole = isinstance(number, int) and not isinstance(number, bool)
            fewest = max(1, _rules(self.rules, number).searches) if whole else 1
            if not whole or number < fewest:
                raise ConfigurationError(
                    f"task {task.id!r} asks its proposer for searches={number!r}; this must be a whole number of at least "
                    f"{fewest}"
                )

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """The episodes of one game, refused proposals among them.

        Raises:
            ConfigurationError: the environment is no ``SearchSolver``.
        """
        runner = _GameRunner(self, specs, context)
        await run_rounds(context, len(specs), runner.round, runner.then)
        return [*runner.paid(), *(await runner.taught() if self.imitate else ())]


def _rules(bounds: Mapping[str, int], searches: int) -> QuestionRules:
    try:
        return QuestionRules(**{"searches": searches, **bounds})  # type: ignore[arg-type]
    except TypeError as error:
        raise UnknownName.among(
            "rule bound", str(sorted(bounds)), QuestionRules.__dataclass_fields__
        ) from error


class _GameRunner:
    """One game while it is played."""

    def __init__(
        self, strategy: SelfPlayStrategy, specs: Sequence[EpisodeSpec], context: RolloutContext
    ) -> None:
        if not isinstance(specs[0].env, SearchSolver):
            raise ConfigurationError(
                f"self_play needs env.id = 'agentenv/SearchSolver-v0', not {type(specs[0].env).__name__}"
            )
        self.strategy, self.specs, self.context = strategy, specs, context
        self.game: Game = get_game(strategy.game, strategy.evaluations, strategy.agents)
        self.turns = [m for m in self.game.turns if not m.optional or m.name in strategy.checks]
        self.at = 0
        self.rounds = 0
        self.env: SearchSolver = specs[0].env
        self.setup: GameSetup = self.env.setup
        low, high = strategy.searches
        drawn = random.Random(specs[0].seed).randint(low, high)
        self.searches: int = specs[0].task.data.get("searches", drawn)
        self.rules = _rules(strategy.rules, self.searches)
        self.state = GameState(specs[0].task, RATES[self.game.rate] if self.game.rate else None)
        self.state.counts["games"] += 1
        self.unreturned = 0  # tokens of episodes that nobody is paid for

    @property
    def turn(self) -> GameTurn:
        return self.turns[self.at]

    def _count(self) -> int:
        turn = self.turn
        if turn.each:
            return len(self.state.plays[turn.each])
        times, half = self.strategy.votes if turn.check in AGREED else turn.times, len(self.specs) // 2
        most = {"all": len(self.specs), "half": half, "others": len(self.specs) - half}[turn.slots]
        return min(most, times or most)

    async def round(self, place: int) -> Trajectory | None:
        """The episode of the present move in slot ``place``; None where the move has fewer."""
        if place >= self._count():
            return None
        turn, spec, context = self.turn, self.specs[place], self.context
        seed = spec.seed + self.rounds * _ROUND_SEEDS
        role = self._role_of(turn, seed)
        policy, chat = self._policy_of(role)
        config = context.config.model_copy(update={"temperature": self._temperature_of(turn, role)})
        episode = f"{context.episode(place)}-{self.rounds}-{turn.name}"
        own = replace(spec, seed=seed, group_id=self._group(turn, role))
        try:
            # The prompt of a role may need a search.
            making = self._make_episode(turn, place, seed)
            env, task = await within(config.deadline_s, making, EnvFault("preparing the episode of a role"))
        except ConfigurationError:
            raise
        except Exception as error:
            played = failed_episode(own, episode, error)
        else:
            own = replace(own, env=env, task=task)
            with nullcontext() if env is spec.env else closing(env):
                played = await run_episode(own, policy, chat, config, episode=episode)
        segments = played.segments
        if config.temperature != context.config.temperature:
            segments = tuple(replace(s, context_mismatch=s.kind is SegmentKind.POLICY) for s in segments)
        played = replace(played, segments=segments, info=played.info | {"role": role, "writes": turn.writes})
        if turn.kind == "search":
            return await self._judged_answer(played)
        return await self._check_agreement(played) if turn.check in AGREED else played

    def _temperature_of(self, turn: GameTurn, role: str) -> float:
        """The role's temperature; a greedy move of a role with other moves too, such as a solver's guess, stays greedy."""
        if turn.greedy and not all(one.greedy for one in self.game.turns if one.role == turn.role):
            return 0.0
        return self.strategy.temperatures.get(role, 0.0 if turn.greedy else self.context.config.temperature)

    def _role_of(self, turn: GameTurn, seed: int) -> str:
        """Whose episode it is: the move's role, or the agent on whom the lot falls."""
        if not self.strategy.agents or not turn.reward or turn.role in self.strategy.role_policies:
            return turn.role
        return random.Random(f"{seed}/{turn.name}").choice(agent_names(self.strategy.agents))

    def _policy_of(self, role: str) -> tuple[Policy, ChatFormat]:
        spec = self.strategy.role_policies.get(role)
        if spec:
            return other_policy(spec)
        return self.context.role_policies.get(role, self.context.policy), self.context.chat

    def _group(self, turn: GameTurn, role: str) -> str:
        return self.specs[0].group_id if turn.compare == "game" else f"{self.context.name}/{role}"

    async def _make_episode(self, turn: GameTurn, place: int, seed: int) -> tuple[Any, Task]:
        """The environment of an episode and the task that it poses."""
        state, prompt = self.state, self.strategy.prompts.get(turn.name, turn.prompt)
        if turn.kind == "propose":
            data = {**state.seed.data, "searches": self.searches, "reference": self.setup.reference}
            return self.env.proposer(prompt or PROPOSER_PROMPT, self.rules), replace(state.seed, data=data)
        if turn.kind != "write":
            env: SearchSolver = self.specs[place].env  # type: ignore[assignment]
            return env.closed_book() if turn.kind == "guess" else env, self._question()
        if turn.check in AGREED and self.strategy.verifier == "searches":
            return await self._verifier_search(turn, seed), self._question()
        seen = {brace: await self._seen(source, place, seed) for brace, source in turn.sees.items()}
        written = [brace for brace, source in turn.sees.items() if source == "question" or "." in source]
        _, chat = self._policy_of(self._role_of(turn, seed))
        text = fitting(prompt, seen, written, chat, self.context.config.context_tokens)
        return RoleTurn(turn.writes), Task(f"{state.seed.id}/{turn.name}", text, split=state.seed.split)

    async def _seen(self, source: str, place: int, seed: int) -> str:
        """What one brace of a prompt is filled with."""
        state = self.state
        if source == "seed":
            return state.seed.question
        if source == "reference":
            return REFERENCE.format(question=self.setup.reference) if self.setup.reference else ""
        if source in ("shown_and_noise", "corpus"):
            return as_page(await self._passages(source, seed))
        if source == "question":
            return self._question().question
        move = source.partition(".")[0]
        return state.text(source, place if len(state.plays[move]) > 1 else 0)

    def _question(self) -> Task:
        assert self.state.task is not None
        return self.state.task

    async def _verifier_search(self, turn: GameTurn, seed: int) -> SearchSolver:
        """A verifier's own search: of the passages that it would have been shown, or of the corpus."""
        source = turn.sees["documents"]
        passages = await self._passages(source, seed) if source != "corpus" else None
        return self.env.posing(self.strategy.prompts.get(turn.name), passages)

    async def _passages(self, source: str, seed: int) -> list[str]:
        """Exactly what the proposer was shown, shuffled among other passages."""
        assert self.state.proposal is not None
        seen = self.state.proposal.documents
        if source == "corpus":
            others = await self.env.found(self.state.proposal.question)
        else:
            others = await self.env.noise_passages(seed, self.strategy.noise)
        documents = list(dict.fromkeys((*seen, *others)))
        random.Random(seed).shuffle(documents)
        return documents

    async def _check_agreement(self, played: Trajectory) -> Trajectory:
        """``played`` with whether its answer is the gold; a judge that fails has not agreed."""
        task = self._question()
        answer = played.info.get("fields", played.info).get("answer")
        agrees = get_scorer("em_squad")(answer, task.answers).value == 1.0
        if not agrees and self.strategy.judge and played.valid:
            agrees = bool(await self._ask_judge(task, answer))
        if self.strategy.confidence:
            agrees = agrees and probability(played) >= self.strategy.confidence
        return replace(played, info=played.info | {"agrees": agrees})

    async def _judged_answer(self, played: Trajectory) -> Trajectory:
        """A solver's episode, paid as a right one where the judge says that its answer is right in other words (SSP).

        Where no judge could be asked nothing can be said of the answer, so the episode is masked.
        """
        task, answer = self._question(), played.info.get("answer")
        if not self.strategy.judge or not played.valid or not answer:
            return played
        if get_scorer("em_squad")(answer, task.answers).value == 1.0:
            return played
        verdict = await self._ask_judge(task, answer)
        if verdict is None:
            return masked(played, "the judge of its answer failed")
        if not verdict:
            return played
        spam = is_spam(turn.action for turn in played.turns)
        whole = self.env.reward_ceiling
        paid = paid_by_game(played, whole * (SPAM_FACTOR if spam else 1.0))
        return replace(paid, info=paid.info | {"success": not spam})

    async def _ask_judge(self, task: Task, answer: str | None) -> bool | None:
        """Whether a judge takes ``answer``: not by a reply without a verdict, for which it may ask; None without a reply."""
        client = _judge_at(self.strategy.judge).client
        judge = Judge(get_rubric("equivalence"), client.model, client)
        try:
            return await judge.takes(task.question, task.answers, answer)
        except (EndpointFault, JudgeFault) as fault:
            self.state.counts["judge_faults"] += 1
            return False if isinstance(fault, JudgeFault) else None

    def then(self, rounds: list[list[Trajectory | None]]) -> Round[Trajectory | None] | None:
        """Takes the last round onto the game state; what is played next, or None where the game is over."""
        state, turn = self.state, self.turn
        state.plays[turn.name] = [played for played in rounds[-1] if played is not None]
        self.rounds += 1
        if not turn.reward:
            self.unreturned += sum(played.response_tokens for played in state.plays[turn.name])
        if turn.name == "propose":
            self._take_proposal()
        flaw = CHECKS[turn.check](state, self.rules, self.setup) if turn.check else None
        if flaw is None:
            return self._go_to(self.at + 1)
        state.counts[f"refused_{flaw}"] += 1
        state.log(flaw)
        return self._refuse(flaw)

    def _take_proposal(self) -> None:
        state = self.state
        (played,) = state.plays["propose"]
        state.counts["proposals"] += 1
        written = played.info.get("fields", {}).get("question")
        state.proposal = played.info.get("proposal") or (Proposal(written, "") if written else None)
        if state.proposal is not None:
            gold = (state.proposal.answer,) if state.proposal.answer else ()
            question = as_question(state.proposal.question)
            data = {"topic": state.seed.question, "searches": len(state.proposal.queries)}
            state.task = Task(f"{state.seed.id}/{played.id}", question, gold, state.seed.split, data)

    def _go_to(self, place: int) -> Round[Trajectory | None] | None:
        self.at = place
        return self.round if place < len(self.turns) else None

    def _refuse(self, flaw: str) -> Round[Trajectory | None] | None:
        """Asks again, goes on with a question of the pool, or ends the game."""
        state = self.state
        failed = next((one.error for one in state.plays[self.turn.name] if not one.valid), "")
        (played,) = state.plays.pop("propose")
        ours = flaw == UNVERIFIED or not played.valid
        state.refused.append(
            masked(played, f"{UNVERIFIED}: {failed}") if ours else paid_by_game(played, self.strategy.penalty)
        )
        state.proposal = state.task = None
        if len(state.refused) < self.strategy.attempts:
            return self._go_to(0)
        if not self.game.resume or self.setup.spare is None:
            return None
        question, answer = self.setup.spare
        state.task, state.pooled = Task(f"{state.seed.id}/pool", question, (answer,), state.seed.split), True
        state.counts["pooled"] += 1
        return self._go_to([turn.name for turn in self.turns].index(self.game.resume))

    def paid(self) -> list[Trajectory]:
        """The episodes of the roles that are paid, with their rewards; roles that are not trained have no tokens there."""
        state = self.state
        state.counts["accepted"] += int(state.task is not None and not state.pooled)
        if state.task is not None:
            state.log("pooled" if state.pooled else "accepted")
        episodes = [(self._move("propose"), played) for played in state.refused]
        for turn in self.turns:
            for place, played in enumerate(state.plays.get(turn.name, ()) if turn.reward else ()):
                rule = REWARDS[self.strategy.reward if turn.reward in CHALLENGES else turn.reward]
                reward = rule(state, turn.name, place) if played.valid else None
                settled = (
                    masked(played, "its reward depends on episodes that failed") if reward is None else None
                )
                episodes.append((turn, settled or paid_by_game(played, reward or 0.0)))
        mine = [
            played
            if played.info.get("role", turn.role) not in self.strategy.role_policies
            else without_tokens(played)
            for turn, played in episodes
        ]
        return [self._headed(mine), *mine[1:]] if mine else []

    async def taught(self) -> list[Trajectory]:
        """The answer of the seed as a demonstration of the move that it is a reply to; none where it has no answer."""
        turn, seed = self._move(self.game.taught), self.state.seed
        if not seed.answers:
            return []
        env, task = await self._make_episode(turn, 0, self.specs[0].seed)
        spec = EpisodeSpec(env, replace(task, id=seed.id), self.specs[0].seed, self.specs[0].group_id)
        tag, *_ = turn.writes
        thought = f"<think>{seed.data['thought']}</think>" if "thought" in seed.data else ""
        with closing(env):
            demonstration = await spell(
                spec, self.context, lambda _: (f"{thought}<{tag}>{seed.answers[0]}</{tag}>",)
            )
        told = demonstration.info | {"role": turn.role}
        return [replace(demonstration, info=told)] if demonstration.valid else []

    def _move(self, name: str) -> GameTurn:
        return next(turn for turn in self.turns if turn.name == name)

    def _headed(self, paid: Sequence[Trajectory]) -> Trajectory:
        """The first of ``paid`` with the metrics of the game, the rewards of each role, and what became of its question."""
        state, first = self.state, paid[0]
        metrics: dict[str, Any] = dict(state.counts)
        for played in paid:
            if played.valid:
                metrics.setdefault(f"reward_{played.info['role']}", []).append(played.reward)
        metrics["sampled_tokens"] = first.response_tokens + self.unreturned
        rate = state.solve_rate
        if rate is not None:
            metrics["solve_rate" if not state.pooled else "pooled_solve_rate"] = [rate]
        outcome = {
            "task": state.task,
            "pooled": state.pooled,
            "rate": rate,
            "attempts": len(state.valid("solve")),
            "asked": state.asked,
            "admitted": not state.pooled and state.task is not None and ADMISSIONS[self.game.admit](state),
        }
        return replace(first, info=first.info | {"strategy": metrics, "game": outcome})


def probability(played: Trajectory) -> float:
    """The probability of all that a policy wrote in an episode: exp of the sum of its log-probs, NaN without records."""
    return math.exp(sum(sum(segment.logprobs) for segment in played.segments))
