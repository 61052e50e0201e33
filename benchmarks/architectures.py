"""Which architectures of transformers can be sampled from and trained: log-probs of all ways of computing them are compared.

For each causal language model that transformers knows a random one of two layers is made, with windows of six tokens. It is
right where sampler, learner and score give the log-probs of the model's own forward pass within .001 nats; refused where
loading it says why it cannot be used; wrong otherwise; and left out where it cannot be made so small by the general rule.
"""

from collections import Counter
from typing import Any

from common import common_arguments, finish, run_script

from agentenv.errors import ConfigurationError
from agentenv.policies.fake_architectures import CONTEXT, VOCABULARY, architectures, tiny_model
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.learner.logprob_agreement import logprob_gaps

NATS = 1e-3


def verdict(model_type: str) -> dict[str, Any]:
    """What becomes of one architecture."""
    try:
        model = tiny_model(model_type)
    except Exception as error:
        return {"verdict": "not built", "reason": type(error).__name__}
    try:
        policy = HFPolicy(model, ByteTokenizer(), context_tokens=CONTEXT)
    except ConfigurationError as error:
        return {"verdict": "refused", "reason": str(error)}
    found = logprob_gaps(policy, vocabulary=VOCABULARY)
    return {"verdict": "right" if max(found.values()) < NATS else "wrong", "nats": found}


def main() -> None:
    """Compares, reports."""
    args = common_arguments(__doc__ or "").parse_args()
    table = {model_type: verdict(model_type) for model_type in architectures()}
    counts = Counter(row["verdict"] for row in table.values())
    lines = [f"{name:<10}{count}" for name, count in counts.most_common()]
    finish("architectures", args, {"counts": dict(counts), "architectures": table}, lines)


if __name__ == "__main__":
    run_script(main)
