"""Goes back in time: a snapshot is restored after a wrong turn, and forks try several actions from one state.

Run it with ``python examples/time_travel.py``.
"""

import agentenv

if __name__ == "__main__":
    env = agentenv.make("agentenv/LocalSearch-v0")  # a small invented world, searched by word overlap
    observation, info = env.reset(seed=7)
    print(observation[0].text.splitlines()[-1])

    before = env.snapshot()
    wrong = env.step("<answer> I do not know </answer>")
    print(f"a guess: reward {wrong.reward}, the episode is over: {wrong.terminated}")

    env.restore(before)  # as if nothing had happened, the random generator included
    searches = [action for action in env.expert() or () if "<search>" in action]
    found = env.step(searches[0])
    print(f"after going back: {found.observation[0].text.strip()[:60]}...")

    answers = ["I do not know", *env.state.task.answers]
    forks = env.fork(len(answers))  # independent environments in the present state
    for fork, answer in zip(forks, answers, strict=True):
        print(f"fork that answers {answer!r}: reward {fork.step(f'<answer> {answer} </answer>').reward}")
        fork.close()
    print(f"{len(env.state.queries)} search was made in the original, whose episode still runs")
    before.release()
    env.close()
