"""Prints the rewards that verifiers itself gives when a server says certain words: PACKAGE ROW WORD [WORD...].

Each word is the answer to every request of one rollout of the row. Nothing of agentgym is imported.
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SAID = []


class Answers(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": SAID[0]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        body["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

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
    play = classic if package == "hash_words" else new
    url = f"http://127.0.0.1:{server.server_port}/v1"
    print(json.dumps([reward async for reward in play(package, int(row), words, url)]))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
