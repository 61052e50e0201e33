"""The command ``agentenv``: finds the command's class, parses its flags, runs it and says what went wrong.

Every command is one file in this folder that holds one frozen dataclass: its fields are the flags, ``run()``
does the work and returns what ``--json`` prints, ``show(result, console)`` prints the same for people.
Modules are imported only when their command is called, so ``agentenv --help`` needs no extra.
"""

import contextlib
import importlib
import importlib.metadata
import signal
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast, get_type_hints

from agentenv.cli.descriptions import description, joined_field_docs
from agentenv.cli.process_exit import leave
from agentenv.cli.standard_streams import as_json, complete_streams, drop_output
from agentenv.cli.switches import joined_lists, plain_switches
from agentenv.core.concurrency.signals import Interrupted, Interruptible
from agentenv.errors import AgentEnvError, ConfigurationError, UnknownName, first_line, is_shortage
from agentenv.streams import make_console, visible

USAGE, FAILURE, SIGNALLED = 2, 1, 128  # exit codes; the number of a signal is added, as shells report it
INTERRUPTED = SIGNALLED + signal.SIGINT


class Command(NamedTuple):
    """One row of the table of commands."""

    target: str  # "module:Class", imported when the command is called
    summary: str


COMMANDS = {
    "list": Command("agentenv.cli.list:List", "show environments, question sets, scorers and policies"),
    "new": Command("agentenv.cli.new:New", "write a one-file environment with its test"),
    "check": Command("agentenv.cli.check:Check", "test whether an environment keeps its contract"),
    "doctor": Command("agentenv.cli.doctor:Doctor", "show which parts of this machine can be used"),
    "world": Command(
        "agentenv.cli.world:World", "generate an invented world: a corpus and questions about it"
    ),
    "warmstart": Command("agentenv.cli.warmstart:Warmstart", "make a small policy by supervised learning"),
    "train": Command(
        "agentenv.cli.train:Train", "train a policy with GRPO, and evaluate it before and after"
    ),
    "eval": Command("agentenv.cli.eval:Eval", "evaluate a policy on a question set"),
    "compare": Command(
        "agentenv.cli.compare:Compare", "test the difference of two evaluations of the same questions"
    ),
    "export": Command("agentenv.cli.export:Export", "write scores or differences as CSV, Markdown or LaTeX"),
    "budget": Command(
        "agentenv.cli.budget:BudgetCurve", "compare scores under budgets of turns, searches and tokens"
    ),
    "seeds": Command(
        "agentenv.cli.seeds:Seeds", "compute pass@k over seeds, and whether enough have been run"
    ),
    "rescore": Command("agentenv.cli.rescore:Rescore", "score the episodes of an evaluation again"),
    "score": Command("agentenv.cli.score:ScoreFile", "score the answers of another system"),
    "report": Command("agentenv.cli.report:Report", "write one HTML page about a run or an evaluation"),
    "messages": Command(
        "agentenv.cli.messages:Messages", "write solved episodes as chat messages, to fine-tune on elsewhere"
    ),
    "trace": Command(
        "agentenv.cli.trace:Trace",
        "find the capabilities that an agent lacks, and make environments for them",
    ),
    "value": Command(
        "agentenv.cli.value:Value", "train a model that predicts the reward of an episode after each turn"
    ),
    "lab list": Command("agentenv.cli.lab:List", "show the controlled comparisons and their progress"),
    "lab starts": Command("agentenv.cli.lab:Starts", "make the policies that the comparisons start from"),
    "lab run": Command("agentenv.cli.lab:Run", "run or continue a controlled comparison"),
    "retriever passages": Command(
        "agentenv.cli.passages:Passages", "make a corpus of documents (text, Markdown, HTML, PDF)"
    ),
    "retriever build": Command("agentenv.cli.retriever:Build", "build an index of a corpus"),
    "retriever query": Command("agentenv.cli.retriever:Query", "search an index"),
    "retriever plan": Command(
        "agentenv.cli.retriever_plan:Plan", "show which index fits into the memory of a machine"
    ),
    "retriever import": Command(
        "agentenv.cli.retriever:ImportIndex", "use an index that another library built"
    ),
    "retriever check": Command("agentenv.cli.retriever:Check", "compare a saved index with its checksums"),
    "retriever facts": Command(
        "agentenv.cli.retriever_facts:Facts",
        "let a model list the facts of a corpus, for search in their graph",
    ),
    "retriever serve": Command("agentenv.cli.retriever_serve:Serve", "serve an index over HTTP"),
    "simulator data": Command(
        "agentenv.cli.simulator:Data", "make training data for a simulated search engine"
    ),
    "simulator train": Command("agentenv.cli.simulator:Train", "fine-tune a model to play the search engine"),
    "simulator serve": Command("agentenv.cli.simulator:Serve", "serve a local model as a chat endpoint"),
    "synthesize asearcher": Command(
        "agentenv.cli.synthesize_asearcher:ASearcher",
        "make questions harder by edits that a model proposes and others check",
    ),
    "synthesize conversations": Command(
        "agentenv.cli.synthesize_conversations:Conversations",
        "make conversations about an invented world whose topic changes",
    ),
    "synthesize fictional-hot": Command(
        "agentenv.cli.synthesize_fictional_hot:FictionalHot",
        "replace the names of real question sets and of their documents by invented ones",
    ),
    "synthesize hds-qa": Command(
        "agentenv.cli.synthesize_hds_qa:HDSQA", "make questions that need parallel searches and a further one"
    ),
    "synthesize ikea": Command(
        "agentenv.cli.synthesize_ikea:IKEA",
        "take equally many questions that a policy knows and does not know",
    ),
    "synthesize paraphrases": Command(
        "agentenv.cli.synthesize_paraphrases:Paraphrases", "write every question of a set in other words"
    ),
    "synthesize organisation": Command(
        "agentenv.cli.synthesize_organisation:OrganisationCommand",
        "invent an organisation with mail, chat and tickets, and questions about it",
    ),
    "synthesize sws": Command(
        "agentenv.cli.synthesize_sws:SwS", "make questions of the kinds that a policy keeps failing"
    ),
    "sandbox run": Command("agentenv.cli.sandbox:Run", "run an untrusted program in a sandbox"),
    "sandbox build": Command("agentenv.cli.sandbox:Build", "build the image of the Docker sandbox"),
    "serve": Command("agentenv.cli.serve:Serve", "serve an environment over a WebSocket and as MCP tools"),
}


_NO_THREAD = "can't start new thread"  # what CPython says where the system refuses one


class Runnable(Protocol):
    """What a command's class offers; ``parse(argv)`` as a class method replaces tyro where present.

    A result whose ``ok`` is False makes the command leave with 1.
    """

    def run(self) -> dict[str, Any]:
        """Does the work and returns what ``--json`` prints."""

    def show(self, result: dict[str, Any], console: Any) -> None:
        """Prints ``result`` for people on a ``rich.console.Console``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 (failed), 2 (wrong usage), 129, 130 or 143 (interrupted).

    Without ``argv`` it runs the words of the command line, and the process then ends whatever threads are left in it.
    """
    if argv is None:
        complete_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    code = FAILURE
    try:
        code = _dispatch([word for word in words if word != "--json"], "--json" in words)
        sys.stdout.flush()  # not left to the end of the process, where nobody could say what went wrong
    except BrokenPipeError:  # the reader of our output went away, as `| head` does: nobody to tell
        drop_output()
    except OSError as error:
        if error.filename is not None:
            raise
        drop_output()
        reason = error.strerror or str(error)
        code = _fail("agentenv", error, False, FAILURE, f"the output could not be written: {reason}")
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILURE
        raise
    finally:
        if argv is None:
            leave(code)
    return code


def _dispatch(words: list[str], json_only: bool) -> int:
    """Answers ``--help`` and ``--version`` itself and hands everything else to a command."""
    group = _members([word for word in words if word not in ("-h", "--help")])
    if group and (len(words) < 2 or words[-1] in ("-h", "--help")):
        text = help_text(group)
        return _answer({"help": text}, text, json_only)
    if words[0] == "--version":
        version = _version()
        return _answer({"version": version}, f"agentenv {version}", json_only)
    try:
        check_words(words)
        name, rest = resolve(words)
    except ConfigurationError as error:
        return _fail("agentenv", error, json_only, USAGE)
    try:
        return _run(name, rest, json_only)
    except AgentEnvError as error:
        return _fail(f"agentenv {name}", error, json_only, FAILURE)
    except Interrupted as error:
        return _fail(f"agentenv {name}", error, json_only, SIGNALLED + error.signal)
    except KeyboardInterrupt:
        return _fail(f"agentenv {name}", KeyboardInterrupt("interrupted"), json_only, INTERRUPTED)


def check_words(words: Sequence[str]) -> None:
    """Refuses names of files that are no text, before hours of work end at the library that cannot write them.

    Raises:
        ConfigurationError: a word holds bytes that the alphabet of this system does not have.
    """
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"{word!a} holds bytes that are no text in {sys.getfilesystemencoding()}: give another name, or set the "
                "variable LC_ALL to a locale of UTF-8 such as C.UTF-8"
            ) from None


def resolve(words: Sequence[str]) -> tuple[str, list[str]]:
    """Splits ``words`` into the command's name, of one word or two, and its own arguments.

    Raises:
        UnknownName: no such command; carries the nearest.
    """
    pair = " ".join(words[:2])  # "retriever build"
    if pair in COMMANDS:
        return pair, list(words[2:])
    if words[0] in COMMANDS:
        return words[0], list(words[1:])
    members = _members(words[:1])
    raise UnknownName.among("command", pair if members else words[0], members or COMMANDS)


def _members(words: Sequence[str]) -> list[str]:
    """The commands of a group such as ``retriever``; all of them where ``words`` is empty."""
    return [name for name in COMMANDS if name.startswith("".join(f"{word} " for word in words))]


def help_text(names: Sequence[str]) -> str:
    """The rows ``names`` of the table of commands, as ``--help`` prints them."""
    width = max(map(len, names))
    rows = "\n".join(f"  {name:<{width}}  {COMMANDS[name].summary}" for name in names)
    return (
        "usage: agentenv COMMAND [flags]\n\n"
        "Multi-turn environments for language-model agents, and a GRPO trainer that can rewind them.\n\n"
        f"{rows}\n\n"
        "agentenv COMMAND --help shows the flags with an example, --json prints one JSON document and\n"
        "nothing else, agentenv --version prints the version. A switch is written --NAME, --no-NAME or\n"
        "--NAME true|false, in every command. A first run: agentenv train laptop-search"
    )


def _run(name: str, argv: list[str], json_only: bool) -> int:
    """Parses, runs and prints one command."""
    # With --json stdout belongs to the result alone; whatever else is printed meanwhile goes to stderr.
    quiet = contextlib.redirect_stdout(sys.stderr) if json_only else contextlib.nullcontext()
    module, _, class_name = COMMANDS[name].target.partition(":")
    try:
        with quiet, Interruptible():
            command = _parse(name, getattr(importlib.import_module(module), class_name), argv)
    except SystemExit as stop:  # --help or wrong flags: the parser has already said what
        if json_only:
            print(as_json({"error": "see stderr", "kind": "usage"} if stop.code else {"help": "see stderr"}))
        return stop.code if isinstance(stop.code, int) else USAGE
    try:
        with quiet, Interruptible():
            result = command.run()
    except BrokenPipeError:
        raise
    except OSError as error:
        path = error.filename or getattr(command, "out", None)  # a failed write() does not say to which file
        reason = error.strerror or str(error) or type(error).__name__
        return _fail(f"agentenv {name}", error, json_only, FAILURE, f"{reason}: {path}" if path else reason)
    except (MemoryError, RuntimeError) as error:
        if str(error) == _NO_THREAD:
            said = "the system allows this user no further thread or process: raise the limit (ulimit -u), or end others"
            return _fail(f"agentenv {name}", error, json_only, FAILURE, said)
        if not is_shortage(error):
            raise
        return _fail(
            f"agentenv {name}", error, json_only, FAILURE, f"the memory is used up: {first_line(error)}"
        )
    if json_only:
        print(as_json(result))
    else:
        command.show(result, make_console())
    return FAILURE if result.get("ok") is False else 0


def _parse(name: str, cls: type, argv: list[str]) -> Runnable:
    """The command's instance for ``argv``; leaves with ``SystemExit`` after help or wrong flags."""
    if hasattr(cls, "parse"):
        return cast(Runnable, cls.parse(argv))
    import tyro

    hints = get_type_hints(cls)
    switches = {name for name, hint in hints.items() if hint is bool}
    words = plain_switches(argv, switches, {name for name, hint in hints.items() if hint == bool | None})
    marked = get_type_hints(cls, include_extras=True)
    appended = {
        name
        for name, hint in marked.items()
        if tyro.conf.UseAppendAction in getattr(hint, "__metadata__", ())
    }
    words = joined_lists(words, {name for name, hint in hints.items() if hint == tuple[str, ...]} - appended)
    if {"-h", "--help"} & set(argv):
        print(description(cls))  # tyro would join the examples into one line and cut words at the edge
        with joined_field_docs(cls):
            tyro.cli(cls, args=["--help"], prog=f"agentenv {name}", description="")
    return cast(Runnable, tyro.cli(cls, args=words, prog=f"agentenv {name}", description=""))


def _version() -> str:
    try:
        return importlib.metadata.version("agentenv-suite")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (run from a checkout that is not installed)"


def _answer(document: dict[str, Any], text: str, json_only: bool) -> int:
    print(as_json(document) if json_only else text)
    return 0


def _fail(who: str, error: BaseException, json_only: bool, code: int, sentence: str | None = None) -> int:
    """Says in one sentence on stderr what went wrong, and again as JSON on stdout if that was asked for."""
    sentence = "; ".join([sentence or str(error), *getattr(error, "__notes__", ())])
    sentence = " ".join(sentence.split())
    print(f"{who}: {visible(sentence)}", file=sys.stderr)
    if json_only:
        print(as_json({"error": sentence, "kind": type(error).__name__}))
    return code


if __name__ == "__main__":
    sys.exit(main())
