"""An MCP server for tests of what goes wrong, without the SDK so that it starts at once: run with the name of a fault."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

fault, count = sys.argv[1], 0


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}}


def listed(page: int) -> dict[str, Any]:
    if fault == "hangs":
        time.sleep(600)
    if fault == "refuses":
        return {"error": {"code": -32602, "message": "no list for you"}}
    if fault in ("new pages", "same page"):
        return {"result": {"tools": [], "nextCursor": "1" if fault == "same page" else str(page)}}
    names = (
        ("reset",)
        if fault == "reserved"
        else ("count", "process", "flood", "sleep", "fail", "garble", "stray")
    )
    return {"result": {"tools": [tool(name) for name in names]}}


def called(name: str) -> dict[str, Any]:
    if name == "sleep":
        time.sleep(600)
    if name == "garble":
        print('{"jsonrpc": "2.0", "id": 1, "resu', flush=True)
        time.sleep(600)
    if name == "stray":
        return {
            "result": {"content": [{"type": "text", "text": str(subprocess.Popen(["sleep", "600"]).pid)}]}
        }
    if name == "fail":
        return {"error": {"code": -32603, "message": "failed"}}
    if name == "flood":
        for _ in range(20):
            sys.stderr.write("x" * 99_999 + "\n")
        sys.stderr.flush()
    text = str(os.getpid() if name == "process" else count)
    return {"result": {"content": [{"type": "text", "text": text}]}}


if fault == "ignores the end":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if fault == "hangs at start":
    time.sleep(600)
if fault == "counts its starts":
    with Path(sys.argv[2]).open("a") as file:
        file.write("x")
for line in sys.stdin:
    request = json.loads(line)
    count += 1
    if request["method"] == "initialize":
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "faulty", "version": "1"}}
        answer: dict[str, Any] = {
            "result": {"protocolVersion": request["params"]["protocolVersion"], **about}
        }
    elif request["method"] == "tools/list":
        answer = listed(count)
    elif request["method"] == "tools/call":
        answer = called(request["params"]["name"])
    else:
        answer = {"error": {"code": -32601, "message": "no such method"}}
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
if fault in ("hangs at the end", "ignores the end"):
    time.sleep(600)
