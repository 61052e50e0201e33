"""Every error that agentenv raises on purpose.

    AgentEnvError
    ├── ConfigurationError (ValueError)       what the user gave cannot be used; the message says what to give
    │   ├── UnknownName (LookupError)         a name that no registry holds; carries the nearest one
    │   ├── CorpusError                       a corpus that is empty, corrupt or has duplicate ids
    │   ├── DatasetError                      a question set with a missing, list-typed or null gold, or duplicate ids
    │   ├── IndexMismatch                     an index built with another encoder or over another corpus
    │   ├── CheckpointMismatch                a checkpoint of another architecture or of another run
    │   └── ContextTooSmall                   a token budget that does not hold one turn
    ├── MissingExtra (ImportError)            an optional dependency is not installed; names the extra
    ├── Diverged (ArithmeticError)            a loss, a gradient or weights in training are not finite; nothing is saved
    ├── EpisodeOver (RuntimeError)            step() after the end, or before reset()
    ├── SnapshotError (RuntimeError)          a part of the state could not be captured or brought back
    │   └── SnapshotRefused                   a live interpreter cannot be captured as it stands; says why
    └── Fault (RuntimeError)                  an infrastructure failure: the episode is left out of the loss, and counted
        ├── EnvFault                          the environment or something behind it broke
        │   ├── RetrieverFault                the search backend failed or missed its deadline
        │   ├── SandboxFault                  no jail could be had, or one broke
        │   ├── BrowserFault                  no browser could be had, it died, or its page crashed or hung
        │   └── ReplayDivergence              a replay gave other observations than the record
        │       └── StateLost                 by its own doing a program's state cannot be brought back: nothing is masked
        ├── PolicyFault                       the engine that samples tokens failed
        │   └── PolicyRefusal                 a content filter refuses the conversation: the policy's doing, never masked
        ├── CassetteMiss (LookupError)        a replay was asked what was never recorded
        ├── EndpointFault                     a model behind an HTTP address failed, refused or spent its budget
        │   └── EndpointRefusal               its content filter refuses the messages
        ├── JudgeFault                        a judge gave no verdict that can be read
        ├── SynthesisFault                    a model wrote nothing that a question set can use
        └── WorkerLost                        a worker of a cluster died, was cut off or missed its deadline

Mistakes of the policy are not here: they are observations with a reward. Each leaf is also the builtin that it
refines, so ``except ValueError`` keeps working.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager


class AgentEnvError(Exception):
    """Base of every error below."""


class ConfigurationError(AgentEnvError, ValueError):
    """What the user gave cannot be used."""


class UnknownName(ConfigurationError, LookupError):
    """A name that no registry holds."""

    @classmethod
    def among(
        cls, kind: str, name: str, known: Iterable[str], others: Mapping[str, str] | None = None
    ) -> "UnknownName":
        """The error for ``name``, with the nearest of ``known`` or, where none is near, all of them.

        Args:
            kind: What it should be a name of.
            name: What was given.
            known: The names that there are.
            others: By what other name one of these is known elsewhere; such a name is no misspelling of another.
        """
        names = sorted(known)
        near = [others[name]] if others and name in others else difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names) or 'none'}."
        return cls(f"No {kind} {name!r}. {hint}")


class CorpusError(ConfigurationError):
    """A corpus that is empty, corrupt or has duplicate ids."""


class DatasetError(ConfigurationError):
    """A question set that cannot be scored as it stands."""


class IndexMismatch(ConfigurationError):
    """An index that was built with another encoder or over another corpus."""


class CheckpointMismatch(ConfigurationError):
    """A checkpoint of another architecture or of another run."""


class ContextTooSmall(ConfigurationError):
    """A token budget that does not hold one turn."""


class MissingExtra(AgentEnvError, ImportError):
    """An optional dependency is not installed."""

    @classmethod
    def of(cls, module: str, extra: str) -> "MissingExtra":
        """The error for ``module``, which the extra ``extra`` installs."""
        return cls(f"{module} is not installed; run: pip install 'agentenv-suite[{extra}]'")


class Diverged(AgentEnvError, ArithmeticError):
    """A loss, a gradient or the weights of a model in training are not finite."""


class EpisodeOver(AgentEnvError, RuntimeError):
    """A step was asked of an episode that has ended or never begun."""


class SnapshotError(AgentEnvError, RuntimeError):
    """A part of the state could not be captured or brought back."""


class SnapshotRefused(SnapshotError):
    """A live interpreter cannot be captured as it stands: threads, child processes, open files, no room."""


class Fault(AgentEnvError, RuntimeError):
    """A failure of ours, never of the policy."""


class EnvFault(Fault):
    """The environment, or something behind it, broke."""


class RetrieverFault(EnvFault):
    """The search backend failed or missed its deadline."""


class SandboxFault(EnvFault):
    """No jail could be had, or one broke."""


class BrowserFault(EnvFault):
    """No browser could be had, it died, or its page crashed or hung."""


class ReplayDivergence(EnvFault):
    """A replay gave other observations than the record."""


class StateLost(ReplayDivergence):
    """A program left nothing that its session could go back to: the session is empty, and its next result says so.

    It is the program's doing. An environment that is taken back goes on with the empty session, and no episode is masked.
    """


class PolicyFault(Fault):
    """The engine that samples tokens failed."""


class PolicyRefusal(PolicyFault):
    """The service of the policy's model refuses to go on with the conversation.

    It is the policy's doing: its episode ends there and counts. Where a model of ours refuses so, it is a `PolicyFault`.
    """


class CassetteMiss(Fault, LookupError):
    """A replay was asked for a call that was never recorded."""


class EndpointFault(Fault):
    """A model behind an HTTP address failed, refused the request, or has spent its budget."""


class EndpointRefusal(EndpointFault):
    """A content filter of a model behind an HTTP address refuses the messages."""


class JudgeFault(Fault):
    """A judge gave no verdict that can be read; the question has no score then."""


class SynthesisFault(Fault):
    """A language model wrote nothing that can be used of what it was asked to write for a question set."""


class WorkerLost(Fault):
    """A worker of a cluster died, was cut off or missed its deadline; what it played is played again elsewhere."""


@contextmanager
def needs_extra(extra: str, module: str = "") -> Iterator[None]:
    """For imports of optional dependencies.

    Args:
        extra: The extra that installs them.
        module: What the error calls the missing one; by default the name under which it is imported.

    Raises:
        MissingExtra: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra.of(module or error.name or str(error), extra) from error


def first_line(error: Exception) -> str:
    """The first line of what a library says in an error, cut for a sentence; the kind of error where it says nothing."""
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__


def is_shortage(error: BaseException) -> bool:
    """Whether memory is what ``error`` complains of; of torch's errors by their names, because it may not be installed."""
    if isinstance(error, AgentEnvError):  # which says by itself what to do
        return False
    said = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and said)


def check_known(
    kind: str, name: str, known: Collection[str], others: Mapping[str, str] | None = None
) -> None:
    """Refuses a name that a registry does not hold; ``others`` as in `UnknownName.among`.

    Raises:
        UnknownName: ``name`` is not among ``known``; the error says which of them is nearest.
    """
    if name not in known:
        raise UnknownName.among(kind, name, known, others)
