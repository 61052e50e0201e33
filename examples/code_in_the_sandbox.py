"""Runs untrusted programs: whole ones with limits, and an interpreter that is rewound and forked with its files.

Run it with ``python examples/code_in_the_sandbox.py``. It needs bubblewrap: see ``agentenv doctor``.
"""

import agentenv
from agentenv.sandbox import ExecutionLimits

GREEDY = "data = [0] * 10**10"
ENDLESS = "while True: pass"
CURIOUS = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=1)"

if __name__ == "__main__":
    with agentenv.make_executor("bwrap", limits=ExecutionLimits(wall_s=2.0)) as executor:
        result = executor.run("print(sum(map(int, input().split())))", stdin="20 22")
        print(f"a program: {result.status}, printed {result.stdout.strip()}")
        for name, program in {"greedy": GREEDY, "endless": ENDLESS, "curious": CURIOUS}.items():
            result = executor.run(program)
            last = (result.stderr.strip() or "nothing").splitlines()[-1]
            print(f"the {name} one: {result.status}, said {last[:60]}")

        session = executor.open()
        session.run("values = [1, 2]; open('notes.txt', 'w').write('first')")
        point = session.snapshot()
        session.run("values.append(3); open('notes.txt', 'w').write('second')")
        look = "values, open('notes.txt').read()"
        print(f"now: {session.run(look).value}")
        session.restore(point)  # the live interpreter and its files together
        print(f"rewound: {session.run(look).value}")
        twin = session.fork()
        twin.run("values.clear()")
        shown = {name: one.run("values").value for name, one in {"twin": twin, "original": session}.items()}
        print(f"after the twin has cleared its values: {shown}")
        twin.close()
        session.close()
