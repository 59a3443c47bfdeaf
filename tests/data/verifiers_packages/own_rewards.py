"""Prints the rewards that verifiers itself gives when a server says certain words: PACKAGE ROW WORD [WORD...].

Each word is the answer to every request of one rollout of the row. For `group_words` the rollouts are one group, and a
list of pairs of word and reward is printed. Nothing of agentgym is imported.
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SAID = []


class Answers(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": SAID.pop() if len(SAID) > 1 else SAID[0]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "created": 1, "model": "m", "usage": usage}
        choice = {"index": 0, "finish_reason": "stop", "delta" if asked.get("stream") else "message": message}
        if asked.get("stream"):
            chunk = json.dumps({**answer, "object": "chat.completion.chunk", "choices": [choice]})
            self.answer("text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n")
        else:
            self.answer("application/json", json.dumps({**answer, "object": "chat.completion", "choices": [choice]}))

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


async def classic(package, row, words, url):
    import verifiers as vf
    from verifiers.types import ClientConfig

    environment = vf.load_environment(package)
    given = [dict(environment.get_dataset()[row])]
    for word in words:
        SAID[:] = [word]
        config = ClientConfig(api_base_url=url, api_key_var="HOME")
        yield (await environment.generate(given, config, "m"))["outputs"][0]["reward"]


async def group(package, row, words, url):
    import verifiers as vf
    from verifiers.types import ClientConfig

    environment = vf.load_environment(package)
    SAID[:] = words
    config = ClientConfig(api_base_url=url, api_key_var="HOME")
    given = [dict(environment.get_dataset()[row])] * len(words)
    for one in (await environment.generate(given, config, "m"))["outputs"]:
        yield one["completion"][-1]["content"], one["reward"]


async def new(package, row, words, url):
    from verifiers.v1.clients import EvalClientConfig, ModelContext
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    environment = load_environment(resolve_env_config({"taskset": {"id": package}, "agent": agent}))
    async with environment.serving():
        for word in words:
            SAID[:] = [word]
            context = ModelContext(model="m", client=EvalClientConfig(base_url=url, api_key_var="HOME"))
            episode = await environment.run_episode([*environment.taskset][row], context)
            yield episode.traces[0].reward


async def main(package, row, *words):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    play = {"hash_words": classic, "group_words": group}.get(package, new)
    url = f"http://127.0.0.1:{server.server_port}/v1"
    print(json.dumps([reward async for reward in play(package, int(row), words, url)]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
