"""The shipped tiny policy: its size, its card, its vocabulary, and that it searches and answers in good form."""

from safetensors import safe_open

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import RolloutConfig
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import STOP, LocalSearch
from agentenv.evaluation.runner import play
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.tiny import TAGS, shipped_weights
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.faiss import FaissRetriever


def test_weights_are_small_and_stored_in_bfloat16() -> None:
    folder = shipped_weights()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 10 * 2**20
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert make_policy("tiny").model.num_parameters() <= 4_000_000


def test_the_card_says_how_it_was_made() -> None:
    text = (shipped_weights() / "README.md").read_text(encoding="utf-8")
    assert "agentenv warmstart" in text
    assert "careful" in text


def test_every_tag_is_one_token_and_text_survives() -> None:
    tokenizer = make_policy("tiny").tokenizer
    for tag in TAGS:
        assert len(tokenizer.encode(f"<{tag}></{tag}>", add_special_tokens=False)) == 2
    text = "Who founded Zürich? <answer> Tegvaru 1871 </answer>\n"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_it_acts_in_good_form() -> None:
    world = FictionalWorld.generate(
        WorldConfig(documents=200, questions=30, families=("lookup", "bridge"), seed=9)
    )
    retriever = FaissRetriever.build(world.documents, HashEncoder())
    policy, card = make_policy("tiny"), read_card(shipped_weights())
    assert card.prompt is not None

    def make() -> LocalSearch:
        return LocalSearch(
            tasks=world.questions,
            retriever=retriever,
            k=card.k,
            prompt=str(card.prompt),
            observation_tokens=256,
        )

    config = RolloutConfig(context_tokens=640, turn_tokens=card.turn_tokens, temperature=0.0, stop=STOP)
    played = play(policy, InlineFormat(policy.tokenizer), make, world.questions, config)
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert sum(turn.valid for turn in turns) >= 0.95 * len(turns)
    assert all(trajectory.valid for trajectory in played)
