"""An MCP server, written by hand, that says half of a character as JSON.stringify does: `"\\ud83d"`."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


def answer(message):
    """None to a notification."""
    method = message["method"]
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        result = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "h", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": "cut", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "half \ud83d"}]}
    else:
        return {"error": {"code": -32601, "message": "unknown"}} if "id" in message else None
    return {"result": result}


def reply(text):
    message = json.loads(text)
    told = answer(message)
    return "" if told is None else json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **told})


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = reply(self.rfile.read(int(self.headers["content-length"]))).encode()
        self.send_response(200 if body else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        http = HTTPServer(("127.0.0.1", 0), Handler)
        print(f"running on http://127.0.0.1:{http.server_port}", file=sys.stderr, flush=True)
        http.serve_forever()
    for line in sys.stdin:
        print(reply(line), flush=True)
        sys.stdout.buffer.write(b"\xff no message\n")
