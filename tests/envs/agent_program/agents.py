"""Agents for the tests: functions, and the same as a command (``python agents.py NAME``)."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from typing import Any

import httpx

from agentenv.core.types import Task

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def ask(
    base_url: str, api_key: str, messages: list[Any], *, seconds: float = 60, **body: Any
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {api_key}"}
    reply = httpx.post(
        f"{base_url}/chat/completions",
        json={"model": "any", "messages": messages} | body,
        headers=headers,
        timeout=seconds,
        trust_env=False,
    )
    if reply.is_error:
        raise RuntimeError(reply.text)
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return message


def accounts(task: Task, *, base_url: str, api_key: str) -> str:
    """Three requests of one conversation, the second as a stream; returns what it was told of each."""
    import openai

    messages: list[Any] = [{"role": "user", "content": task.question}]
    told = []
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        create: Any = client.chat.completions.create
        for place in range(3):
            asked = {"model": "any", "messages": messages}
            if place == 1:
                first, ending, last = create(**asked, stream=True, stream_options={"include_usage": True})
                said, finish = first.choices[0].delta.content, ending.choices[0].finish_reason
            else:
                last = create(**asked)
                said, finish = last.choices[0].message.content, last.choices[0].finish_reason
            usage = last.usage
            told.append([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, finish])
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
    return json.dumps(told)


def plain(task: Task, *, base_url: str, api_key: str) -> str:
    """One question, one answer."""
    return str(ask(base_url, api_key, [{"role": "user", "content": task.question}])["content"])


def with_tools(task: Task, *, base_url: str, api_key: str) -> str:
    """Calls tools until the model answers without a call."""
    messages: list[Any] = [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": task.question},
    ]
    while True:
        turn = ask(base_url, api_key, messages, tools=[ADD])
        messages.append(turn)
        if "tool_calls" not in turn:
            return str(turn["content"])
        # Services may be answered in any order.
        for call in reversed(turn["tool_calls"]):
            numbers = json.loads(call["function"]["arguments"])
            said = str(numbers["a"] + numbers["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})


def one_at_a_time(task: Task, *, base_url: str, api_key: str) -> str:
    """Takes one call of a turn, and says how many it got."""
    messages: list[Any] = [{"role": "user", "content": task.question}]
    turn = ask(base_url, api_key, messages, tools=[ADD], parallel_tool_calls=False)
    calls = turn.get("tool_calls", [])
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"{len(calls)}"} for call in calls]
    turn = ask(base_url, api_key, [*messages, turn, *results], tools=[ADD], parallel_tool_calls=False)
    return str(turn["content"])


async def forgetful(task: Task, *, base_url: str, api_key: str) -> str:
    """Asks for notes until there are none, with a context of its own each time."""
    said = ""
    for place in range(3):
        turn = await asyncio.to_thread(
            ask, base_url, api_key, [{"role": "user", "content": f"{task.question} Note {place}: {said}"}]
        )
        said = str(turn["content"])
    return said


def react(task: Task, *, base_url: str, api_key: str) -> str:
    """Lets the model stop where it would make up what it sees."""
    messages: list[Any] = [{"role": "user", "content": task.question}]
    said = ask(base_url, api_key, messages, stop=["Observation:"])
    messages += [said, {"role": "user", "content": "Observation: sunny"}]
    return str(ask(base_url, api_key, messages, stop="Observation:")["content"])


def reminding(task: Task, *, base_url: str, api_key: str) -> str:
    """Goes on with a message of the system, behind the results of tools where some were called."""
    messages: list[Any] = [{"role": "user", "content": task.question}]
    messages.append(ask(base_url, api_key, messages, tools=[ADD]))
    for call in messages[-1].get("tool_calls", []):
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "5"})
    messages.append({"role": "system", "content": "One word."})
    return str(ask(base_url, api_key, messages, tools=[ADD])["content"])


def as_it_came(task: Task, *, base_url: str, api_key: str) -> Any:
    """Returns the content as the endpoint gave it."""
    return ask(base_url, api_key, [{"role": "user", "content": task.question}])["content"]


def pausing(task: Task, *, base_url: str, api_key: str) -> str:
    """Two requests over one connection, with more than the usual five seconds between them."""
    host = httpx.URL(base_url)
    connection = http.client.HTTPConnection(host.host, host.port)
    body = json.dumps({"messages": [{"role": "user", "content": task.question}]})
    for seconds in (0, 6):
        time.sleep(seconds)
        connection.request(
            "POST", f"{host.path}/chat/completions", body, {"Authorization": f"Bearer {api_key}"}
        )
        reply = json.loads(connection.getresponse().read())
    connection.close()
    return str(reply["choices"][0]["message"]["content"])


def cuts_a_character(task: Task, *, base_url: str, api_key: str) -> str:
    """Sends half of a surrogate pair, as a client in JavaScript does that cuts a text."""
    body = b'{"messages": [{"role": "user", "content": "Go on: \\ud83d \\\\ud83d \\ud83d\\ude00"}]}'
    headers = {"Authorization": f"Bearer {api_key}"}
    reply = httpx.post(
        f"{base_url}/chat/completions", content=body, headers=headers, trust_env=False, timeout=60
    )
    return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])


def by_chance(task: Task, *, base_url: str, api_key: str) -> str:
    return str(ask(base_url, api_key, [{"role": "user", "content": uuid.uuid4().hex}])["content"])


def raises(task: Task, *, base_url: str, api_key: str) -> str:
    plain(task, base_url=base_url, api_key=api_key)
    raise KeyError("city")


def gives_a_number(task: Task, *, base_url: str, api_key: str) -> int:
    return int(plain(task, base_url=base_url, api_key=api_key))


def leaves(task: Task, *, base_url: str, api_key: str) -> None:
    plain(task, base_url=base_url, api_key=api_key)
    sys.exit(3)


def sleeps(task: Task, *, base_url: str, api_key: str) -> str:
    time.sleep(3)
    return "5"


def knows(task: Task, *, base_url: str, api_key: str) -> str:
    return "5"


def with_child(task: Task, *, base_url: str, api_key: str) -> str:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return plain(task, base_url=base_url, api_key=api_key)


def leaves_a_child(task: Task, *, base_url: str, api_key: str) -> str:
    """Ends before the child, which holds its output open."""
    answer = plain(task, base_url=base_url, api_key=api_key)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    return answer


def impatient(task: Task, *, base_url: str, api_key: str) -> str:
    """A client with a timeout of a second."""
    return str(ask(base_url, api_key, [{"role": "user", "content": "?"}], seconds=1)["content"])


def impatient_twice(task: Task, *, base_url: str, api_key: str) -> str:
    with suppress(httpx.TimeoutException):
        impatient(task, base_url=base_url, api_key=api_key)
    return plain(Task("", "?"), base_url=base_url, api_key=api_key)


async def twins(task: Task, *, base_url: str, api_key: str) -> str:
    """Two requests at the same time, the same to the letter."""
    body = (base_url, api_key, [{"role": "user", "content": "?"}])
    left, right = await asyncio.gather(*(asyncio.to_thread(ask, *body) for _ in range(2)))
    return " and ".join(sorted((left["content"], right["content"])))


def leaves_requests(task: Task, *, base_url: str, api_key: str) -> str:
    """Ends before two threads of its own have an answer."""

    def asks() -> None:
        with suppress(RuntimeError):  # the refusal of what nobody answers any more
            ask(base_url, api_key, [{"role": "user", "content": "?"}])

    for _ in range(2):
        threading.Thread(target=asks, daemon=True).start()
    time.sleep(0.5)
    return "5"


async def impatient_beside_another(task: Task, *, base_url: str, api_key: str) -> str:
    """Asks once more what it has given up to wait for, while another request waits."""

    async def one(question: str, seconds: float) -> str:
        messages = [{"role": "user", "content": question}]
        return str((await asyncio.to_thread(ask, base_url, api_key, messages, seconds=seconds))["content"])

    async def twice() -> str:
        with suppress(httpx.TimeoutException):
            await one("left", 1.5)
        return await one("left", 60)

    async def later() -> str:
        await asyncio.sleep(0.5)
        return await one("right", 60)

    return " and ".join(await asyncio.gather(twice(), later()))


def gives_up_one(task: Task, *, base_url: str, api_key: str) -> str:
    """Of two requests at the same time, it waits for the first alone."""
    first: list[str] = []
    body = (base_url, api_key, [{"role": "user", "content": "first"}])
    thread = threading.Thread(target=lambda: first.append(ask(*body)["content"]))
    thread.start()
    time.sleep(0.5)
    with suppress(httpx.TimeoutException):
        ask(base_url, api_key, [{"role": "user", "content": "second"}], seconds=1)
    thread.join()
    return str(ask(base_url, api_key, [{"role": "user", "content": f"after {first[0]}"}])["content"])


def hides_a_refusal(task: Task, *, base_url: str, api_key: str) -> str:
    """Answers nothing where its second request fails."""
    messages = [{"role": "user", "content": task.question}]
    said = ask(base_url, api_key, messages)["content"]
    try:
        return str(ask(base_url, api_key, messages, tool_choice="required")["content"])
    except RuntimeError:
        return str(said)


def does_without(task: Task, *, base_url: str, api_key: str) -> str:
    """Asks without what is refused."""
    messages = [{"role": "user", "content": task.question}]
    try:
        return str(ask(base_url, api_key, messages, response_format={"type": "json_object"})["content"])
    except RuntimeError:
        return str(ask(base_url, api_key, messages)["content"])


def asks_elsewhere(task: Task, *, base_url: str, api_key: str) -> str:
    """Takes another interface than chat completions, as some frameworks do unless they are told."""
    headers = {"Authorization": f"Bearer {api_key}"}
    return httpx.post(f"{base_url}/responses", json={"input": "?"}, headers=headers, trust_env=False).text


def with_openai(task: Task, *, base_url: str, api_key: str, stream: bool = False) -> str:
    """What a user of OpenAI's client writes."""
    import openai

    messages: list[Any] = [{"role": "user", "content": task.question}]
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        asked: dict[str, Any] = {"model": "any", "messages": messages, "tools": [ADD], "temperature": 0.3}
        while True:
            if stream:
                with client.chat.completions.stream(**asked) as events:
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**asked).choices[0].message
            if not message.tool_calls:
                return str(message.content)
            messages.append(message)
            for call in message.tool_calls:
                numbers = json.loads(call.function.arguments)
                said = str(numbers["a"] + numbers["b"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def with_openai_stream(task: Task, *, base_url: str, api_key: str) -> str:
    """The same over streams, which the client puts together."""
    return with_openai(task, base_url=base_url, api_key=api_key, stream=True)


def asks_for_more(task: Task, *, base_url: str, api_key: str) -> str:
    body = {"messages": [{"role": "user", "content": "?"}]} | json.loads(os.environ["AGENT_BODY"])
    return str(ask(base_url, api_key, **body)["content"])


def with_a_wrong_key(task: Task, *, base_url: str, api_key: str) -> str:
    """Is refused, says so, and then asks as it should."""
    try:
        ask(base_url, api_key[:-1], [{"role": "user", "content": "?"}])
    except RuntimeError as error:
        return plain(Task("", str(error)), base_url=base_url, api_key=api_key)
    return "nobody looked at the key"


def changing(task: Task, *, base_url: str, api_key: str) -> str:
    """Writes its system prompt anew before each request, so that each is a context with the calls before it."""
    messages: list[Any] = [{"role": "user", "content": task.question}]
    for number in range(2):
        head = {"role": "system", "content": f"Request {number}."}
        turn = ask(base_url, api_key, [head, *messages], tools=[ADD])
        messages.append(turn)
        for call in turn.get("tool_calls", []):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "5"})
    return str(messages[-1]["content"])


def plans_and_says(task: Task, *, base_url: str, api_key: str) -> str:
    """Asks for a call, and in a context of its own, without tools, for the answer."""
    turn = ask(base_url, api_key, [{"role": "user", "content": task.question}], tools=[ADD])
    made = [call["function"]["name"] for call in turn.get("tool_calls", [])]
    said = ask(base_url, api_key, [{"role": "user", "content": f"Called: {made}. {task.question}"}])
    return str(said["content"])


def main() -> None:
    question = sys.stdin.read()
    answer = globals()[sys.argv[1]](
        Task(os.environ["AGENTENV_TASK_ID"], question),
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
    )
    print(answer)


if __name__ == "__main__":
    main()
