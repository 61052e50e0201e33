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
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, run_episode
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.envs.search.local_search import as_question
from agentenv.envs.search.proposals import Proposal, Rules, as_page
from agentenv.envs.search.self_play import PROPOSER_PROMPT, REFERENCE, Deal, RoleTurn, SearchSolver
from agentenv.errors import ConfigurationError, EndpointFault, JudgeFault, UnknownName
from agentenv.evaluation.llm_judge import Judge
from agentenv.evaluation.rubrics import get_rubric
from agentenv.policies.policy_spec import is_endpoint, make_endpoint_policy
from agentenv.trainers.selfplay.board import Board
from agentenv.trainers.selfplay.games import GAMES, Game, Move, get_game
from agentenv.trainers.selfplay.question_checks import AGREED, CHECKS, UNVERIFIED
from agentenv.trainers.selfplay.role_rewards import ADMISSIONS, CHALLENGES, REWARDS, Challenge
from agentenv.trainers.strategies.reflectors import other_policy
from agentenv.trainers.strategies.rollout_context import RolloutContext, Round, run_rounds

_ROUND_SEEDS = 1 << 31  # seeds of starts are below; each round of a game has its own


@dataclass(frozen=True, kw_only=True)
class SelfPlayStrategy:
    """Plays a game whose seed is the task of the starts; their environments are ``SearchSolver``s.

    The trajectories of each role that is paid come back, its name in ``info["role"]``; what happened to the question is in
    ``info["game"]`` of the first one, for the sampler that keeps the pool.
    """

    game: str = "ssp"
    """Row of ``GAMES``."""
    checks: tuple[str, ...] = ("verify",)
    """The optional moves that are played; of ``ssp``: ``verify``, ``guess`` (closed book, against trivial questions) and
    ``compete`` (searches the corpus for competing answers)."""
    votes: int = 1
    """Episodes of each of them, every one under a shuffle of its own; all have to agree."""
    noise: int = 4
    """Passages of other searches among those that a verifier is shown."""
    verifier: Literal["reads", "searches"] = "reads"
    """Whether it is shown the passages at once, as published, or searches among them as a solver does; where the whole
    corpus is asked, it then searches that."""
    confidence: float = 0.0
    """Least probability, by the log-probs recorded with its tokens, at which a verifier has written its whole episode; what
    is less likely has not agreed. 0 asks for none."""
    searches: tuple[int, int] = (1, 2)
    """Least and most searches that a proposer is asked for."""
    attempts: int = 1
    """Proposals asked for before a question of the pool takes their place."""
    reward: Challenge = "challenge"
    """The proposer's reward: ``challenge`` (1 - s) or ``intermediate`` (4 s (1 - s))."""
    penalty: float = 0.0
    """Reward of a refused proposal (SSP: 0 in its script, -1 in its configuration)."""
    rules: dict[str, int | bool] = field(default_factory=dict)
    """Bounds of the rules, by the names of the fields of ``Rules``; ``searches`` is that of the episode."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Opening messages by move, in place of the game's own."""
    role_policies: dict[str, str] = field(default_factory=dict)
    """Who plays a role in place of the trained policy: ``tiny``, ``hf:PATH`` or ``openai:MODEL@URL``; not trained."""
    judge: str = ""
    """``openai:MODEL@URL`` is asked where a verifier's answer is not the gold by exact match; empty asks nobody."""

    def __post_init__(self) -> None:
        game = get_game(self.game)
        moves = {move.name: move for move in game.moves}
        for name in self.checks:
            if name not in moves or not moves[name].optional:
                raise UnknownName.among(
                    f"check of the game {self.game!r}:", name, [m for m in moves if moves[m].optional]
                )
        for name in self.prompts:
            if name not in moves:
                raise UnknownName.among(f"move of the game {self.game!r}:", name, moves)
        for role in self.role_policies:
            if role not in {move.role for move in game.moves}:
                raise UnknownName.among(
                    f"role of the game {self.game!r}:", role, {move.role for move in game.moves}
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
                "self_play needs 0 <= confidence < 1, and 0 for a verifier behind an address: its log-probs are not recorded"
            )
        _rules(self.rules, low)

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """The episodes of one game, refused proposals among them.

        Raises:
            ConfigurationError: the environment is no ``SearchSolver``.
        """
        table = _Table(self, specs, context)
        await run_rounds(context, len(specs), table.round, table.then)
        return table.paid()


def _rules(bounds: Mapping[str, int], searches: int) -> Rules:
    try:
        return Rules(**{"searches": searches, **bounds})  # type: ignore[arg-type]
    except TypeError as error:
        raise UnknownName.among("rule bound", str(sorted(bounds)), Rules.__dataclass_fields__) from error


class _Table:
    """One game while it is played."""

    def __init__(self, how: SelfPlayStrategy, specs: Sequence[EpisodeSpec], context: RolloutContext) -> None:
        if not isinstance(specs[0].env, SearchSolver):
            raise ConfigurationError(
                f"self_play needs env.id = 'agentenv/SearchSolver-v0', not {type(specs[0].env).__name__}"
            )
        self.how, self.specs, self.context = how, specs, context
        self.game: Game = GAMES[how.game]
        self.moves = [m for m in self.game.moves if not m.optional or m.name in how.checks]
        self.at = 0
        self.rounds = 0
        self.env: SearchSolver = specs[0].env
        self.deal: Deal = self.env.deal
        low, high = how.searches
        self.searches = random.Random(specs[0].seed).randint(low, high)
        self.rules = _rules(how.rules, self.searches)
        self.board = Board(specs[0].task)
        self.board.counts["games"] += 1
        self.unreturned = 0  # tokens of episodes that nobody is paid for

    @property
    def move(self) -> Move:
        return self.moves[self.at]

    def _count(self) -> int:
        move = self.move
        if move.each:
            return len(self.board.plays[move.each])
        times = self.how.votes if move.check in AGREED else move.times
        return min(len(self.specs), times or len(self.specs))

    async def round(self, place: int) -> Trajectory | None:
        """The episode of the present move in slot ``place``; None where the move has fewer."""
        if place >= self._count():
            return None
        move, spec, context = self.move, self.specs[place], self.context
        seed = spec.seed + self.rounds * _ROUND_SEEDS
        policy, chat = self._policy_of(move)
        config = replace(context.config, temperature=0.0) if move.greedy else context.config
        episode = f"{context.episode(place)}-{self.rounds}-{move.name}"
        env, task = await self._posed(move, place, seed)
        own = EpisodeSpec(env, task, seed, self._group(move))
        if env is spec.env:
            played = await run_episode(own, policy, chat, config, episode=episode)
        else:
            with closing(env):
                played = await run_episode(own, policy, chat, config, episode=episode)
        played = replace(played, info=played.info | {"role": move.role, "writes": move.writes})
        return await self._agreement(played) if move.check in AGREED else played

    def _policy_of(self, move: Move) -> tuple[Policy, ChatFormat]:
        spec = self.how.role_policies.get(move.role)
        if spec:
            return other_policy(spec)
        return self.context.role_policies.get(move.role, self.context.policy), self.context.chat

    def _group(self, move: Move) -> str:
        return self.specs[0].group_id if move.compare == "game" else f"{self.context.name}/{move.role}"

    async def _posed(self, move: Move, place: int, seed: int) -> tuple[Any, Task]:
        """The environment of an episode and the task that it poses."""
        board, prompt = self.board, self.how.prompts.get(move.name, move.prompt)
        if move.kind == "propose":
            data = {**board.seed.data, "searches": self.searches, "reference": self.deal.reference}
            return self.env.proposer(prompt or PROPOSER_PROMPT, self.rules), replace(board.seed, data=data)
        if move.kind != "write":
            env: SearchSolver = self.specs[place].env  # type: ignore[assignment]
            return env.closed_book() if move.kind == "guess" else env, self._question()
        if move.check in AGREED and self.how.verifier == "searches":
            return await self._searched(move, seed), self._question()
        for brace, source in move.sees.items():
            prompt = prompt.replace(f"{{{brace}}}", await self._seen(source, place, seed))
        return RoleTurn(move.writes), Task(f"{board.seed.id}/{move.name}", prompt, split=board.seed.split)

    async def _seen(self, source: str, place: int, seed: int) -> str:
        """What one brace of a prompt is filled with."""
        board = self.board
        if source == "seed":
            return board.seed.question
        if source == "reference":
            return REFERENCE.format(question=self.deal.reference) if self.deal.reference else ""
        if source in ("shown_and_noise", "corpus"):
            return as_page(await self._passages(source, seed))
        if source == "question":
            return self._question().question
        move = source.partition(".")[0]
        return board.text(source, place if len(board.plays[move]) > 1 else 0)

    def _question(self) -> Task:
        assert self.board.task is not None
        return self.board.task

    async def _searched(self, move: Move, seed: int) -> SearchSolver:
        """A verifier's own search: of the passages that it would have been shown, or of the corpus."""
        source = move.sees["documents"]
        passages = await self._passages(source, seed) if source != "corpus" else None
        return self.env.posing(self.how.prompts.get(move.name), passages)

    async def _passages(self, source: str, seed: int) -> list[str]:
        """Exactly what the proposer was shown, shuffled among other passages."""
        assert self.board.proposal is not None
        shown = self.board.proposal.documents
        if source == "corpus":
            others = await self.env.found(self.board.proposal.question)
        else:
            others = await self.env.noise_passages(seed, self.how.noise)
        documents = list(dict.fromkeys((*shown, *others)))
        random.Random(seed).shuffle(documents)
        return documents

    async def _agreement(self, played: Trajectory) -> Trajectory:
        """``played`` with whether its answer is the gold; a judge that fails has not agreed."""
        task = self._question()
        answer = played.info.get("fields", played.info).get("answer")
        agrees = get_scorer("em_squad")(answer, task.answers).value == 1.0
        if not agrees and self.how.judge and played.valid:
            agrees = await self._judged(task, answer)
        if self.how.confidence:
            agrees = agrees and probability(played) >= self.how.confidence
        return replace(played, info=played.info | {"agrees": agrees})

    async def _judged(self, task: Task, answer: str | None) -> bool:
        client = make_endpoint_policy(self.how.judge).client
        judge = Judge(get_rubric("equivalence"), client.model, client)
        try:
            return (await judge.grade(task.question, task.answers, answer)).value == 1.0
        except (EndpointFault, JudgeFault):
            self.board.counts["judge_faults"] += 1
            return False

    def then(self, rounds: list[list[Trajectory | None]]) -> Round[Trajectory | None] | None:
        """Takes the last round onto the board; what is played next, or None where the game is over."""
        board, move = self.board, self.move
        board.plays[move.name] = [played for played in rounds[-1] if played is not None]
        self.rounds += 1
        if not move.reward:
            self.unreturned += sum(played.response_tokens for played in board.plays[move.name])
        if move.name == "propose":
            self._take_proposal()
        flaw = CHECKS[move.check](board, self.rules, self.deal) if move.check else None
        if flaw is None:
            return self._go_to(self.at + 1)
        board.counts[f"refused_{flaw}"] += 1
        board.log(flaw)
        return self._refuse(flaw)

    def _take_proposal(self) -> None:
        board = self.board
        (played,) = board.plays["propose"]
        board.counts["proposals"] += 1
        written = played.info.get("fields", {}).get("question")
        board.proposal = played.info.get("proposal") or (Proposal(written, "") if written else None)
        if board.proposal is not None:
            gold = (board.proposal.answer,) if board.proposal.answer else ()
            question = as_question(board.proposal.question)
            data = {"topic": board.seed.question, "searches": len(board.proposal.queries)}
            board.task = Task(f"{board.seed.id}/{played.id}", question, gold, board.seed.split, data)

    def _go_to(self, place: int) -> Round[Trajectory | None] | None:
        self.at = place
        return self.round if place < len(self.moves) else None

    def _refuse(self, flaw: str) -> Round[Trajectory | None] | None:
        """Asks again, goes on with a question of the pool, or ends the game."""
        board = self.board
        (played,) = board.plays.pop("propose")
        masked = flaw == UNVERIFIED or not played.valid
        board.refused.append(_masked(played, UNVERIFIED) if masked else _paid(played, self.how.penalty))
        board.proposal = board.task = None
        if len(board.refused) < self.how.attempts:
            return self._go_to(0)
        if not self.game.resume or self.deal.spare is None:
            return None
        question, answer = self.deal.spare
        board.task, board.pooled = Task(f"{board.seed.id}/pool", question, (answer,), board.seed.split), True
        board.counts["pooled"] += 1
        return self._go_to([move.name for move in self.moves].index(self.game.resume))

    def paid(self) -> list[Trajectory]:
        """The episodes of the roles that are paid, with their rewards; who is not trained has no tokens there."""
        board = self.board
        board.counts["accepted"] += int(board.task is not None and not board.pooled)
        if board.task is not None:
            board.log("pooled" if board.pooled else "accepted")
        episodes = [(self._move("propose"), played) for played in board.refused]
        for move in self.moves:
            for place, played in enumerate(board.plays.get(move.name, ()) if move.reward else ()):
                rule = REWARDS[self.how.reward if move.reward in CHALLENGES else move.reward]
                reward = rule(board, move.name, place) if played.valid else None
                settled = (
                    _masked(played, "its reward depends on episodes that failed") if reward is None else None
                )
                episodes.append((move, settled or _paid(played, reward or 0.0)))
        mine = [
            played if move.role not in self.how.role_policies else _foreign(played)
            for move, played in episodes
        ]
        return [self._headed(mine[0]), *mine[1:]] if mine else []

    def _move(self, name: str) -> Move:
        return next(move for move in self.moves if move.name == name)

    def _headed(self, first: Trajectory) -> Trajectory:
        """``first`` with the figures of the game and what became of its question."""
        board = self.board
        figures: dict[str, Any] = dict(board.counts)
        figures["sampled_tokens"] = first.response_tokens + self.unreturned
        rate = board.solve_rate
        if rate is not None:
            figures["solve_rate" if not board.pooled else "pooled_solve_rate"] = [rate]
        story = {
            "task": board.task,
            "pooled": board.pooled,
            "rate": rate,
            "asked": board.asked,
            "admitted": not board.pooled and board.task is not None and ADMISSIONS[self.game.admit](board),
        }
        return replace(first, info=first.info | {"strategy": figures, "game": story})


def probability(played: Trajectory) -> float:
    """With which a policy has written all of an episode: exp of the sum of its log-probs, NaN where none are recorded."""
    return math.exp(sum(sum(segment.logprobs) for segment in played.segments))


def _paid(played: Trajectory, reward: float) -> Trajectory:
    """``played`` with the game's reward for all of it, which its last turn gets."""
    if not played.valid:
        return played
    turns = played.turns
    if turns:
        turns = (*turns[:-1], replace(turns[-1], reward=reward - sum(turn.reward for turn in turns[:-1])))
    return replace(played, reward=reward, turns=turns)


def _masked(played: Trajectory, why: str) -> Trajectory:
    """``played`` out of loss and statistics."""
    return replace(played, valid=False, reward=0.0, error=played.error or why)


def _foreign(played: Trajectory) -> Trajectory:
    """``played`` without tokens: others' weights wrote them."""
    return replace(played, segments=())
