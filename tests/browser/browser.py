"""A real browser for tests: Debian's Chromium, driven through chromedriver's W3C WebDriver interface,
which is JSON over HTTP. Only Python's standard library. What the page logged and asked the network
for is kept by the browser and read afterwards.
"""
import base64
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import kedge  # noqa: E402

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window, and nothing but what the tests open in it."""

    def __init__(self):
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if chromium is None or driver is None:
            raise kedge.Skip("skipped: no chromium (Debian packages chromium, chromium-driver)")
        self.dir = tempfile.TemporaryDirectory(prefix="kedge-browser-", ignore_cleanup_errors=True)
        self.log = open(os.path.join(self.dir.name, "driver.log"), "w")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.proc = subprocess.Popen([driver, "--port=%d" % self.port], stdout=self.log,
                                     stderr=subprocess.STDOUT)
        self.session = None
        try:
            self._wait_ready()
            self._start(chromium)
        except BaseException:
            self.close()
            raise

    def _wait_ready(self):
        end = time.monotonic() + kedge.DEADLINE
        while True:
            assert self.proc.poll() is None, "chromedriver ended at once"
            try:
                if self.ask("GET", "/status")["ready"]:
                    return
            except OSError:
                pass
            assert time.monotonic() < end, "chromedriver is not ready"

    def _start(self, chromium):
        args = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-extensions", "--force-device-scale-factor=1",
                "--user-data-dir=" + os.path.join(self.dir.name, "profile")]
        if os.geteuid() == 0:
            args.append("--no-sandbox")
        self.session = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": chromium, "args": args},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            "timeouts": {"script": 1000 * kedge.DEADLINE, "pageLoad": 1000 * kedge.DEADLINE},
        }}})["sessionId"]
        self.devtools("Network.enable")

    def close(self):
        try:
            if self.session is not None:
                self.ask("DELETE", self._path(""))
        finally:
            self.proc.terminate()
            self.proc.wait()
            self.log.close()
            self.dir.cleanup()

    def _path(self, rest):
        return "/session/%s%s" % (self.session, rest)

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2 * kedge.DEADLINE)
        try:
            c.request(method, path, None if method != "POST" else json.dumps(body or {}),
                      {"Content-Type": "application/json"})
            r = c.getresponse()
            value = json.loads(r.read())["value"]
            assert r.status == 200, value
            return value
        finally:
            c.close()

    # --- what tests do ---

    def open(self, url):
        self.ask("POST", self._path("/url"), {"url": url})

    def run(self, script, *args):
        """The value a script's body returns."""
        return self.ask("POST", self._path("/execute/sync"), {"script": script, "args": list(args)})

    def devtools(self, cmd, **params):
        return self.ask("POST", self._path("/goog/cdp/execute"), {"cmd": cmd, "params": params})

    def look(self, dark):
        """The colours the reader prefers."""
        self.devtools("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def resize(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=width < 600)

    def text(self, selector):
        """Text of the first match, None when there is none or it cannot be seen."""
        return self.run("const e = document.querySelector(arguments[0]);"
                        "return e !== null && e.offsetParent !== null ? e.innerText : null;", selector)

    def number(self, selector):
        text = self.text(selector)
        return None if text is None else int(text.replace(",", "").split()[0])

    def element(self, selector):
        return self.ask("POST", self._path("/element"),
                        {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.ask("POST", self._path("/element/%s/click" % self.element(selector)))

    def type(self, selector, text):
        self.ask("POST", self._path("/element/%s/value" % self.element(selector)), {"text": text})

    def wait_for(self, what, want=True):
        end = time.monotonic() + kedge.DEADLINE
        while True:
            got = what()
            if got == want:
                return
            assert time.monotonic() < end, "still %r, wanted %r" % (got, want)

    def console(self):
        """Lines of the console since the last call, those of a missing key left to the caller."""
        return [e["message"] for e in self.ask("POST", self._path("/se/log"), {"type": "browser"})]

    def requests(self):
        """Addresses the page asked for since the last call."""
        out = []
        for entry in self.ask("POST", self._path("/se/log"), {"type": "performance"}):
            m = json.loads(entry["message"])["message"]
            if m["method"] == "Network.requestWillBeSent":
                out.append(m["params"]["request"]["url"])
        return out

    def screenshot(self, path):
        """The whole page, to a PNG file."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        png = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True,
                            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"],
                                  "scale": 1})
        with open(path, "wb") as f:
            f.write(base64.b64decode(png["data"]))
