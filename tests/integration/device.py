# SPDX-License-Identifier: MIT
"""What stories of real cards alone need."""
import ctypes
import json
import threading
import time

class Card:
    """How much of the first card's memory is taken, by all; a context of this process sees it."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        assert (result := getattr(self.driver, name)(*arguments)) == 0, f"{name}: {result}"

    def used_mib(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return (total.value - free.value) / (1 << 20)


class Reader(threading.Thread):
    """A streamed completion of token ids."""

    def __init__(self, cistern, ids, n):
        super().__init__()
        self.cistern, self.text, self.n_events, self.error = cistern, "", 0, None
        self.fields = {"prompt": ids, "max_tokens": n, "temperature": 0.8, "seed": 7,
                       "ignore_eos": True, "stream": True}
        self.start()

    def run(self):
        connection = self.cistern.connect()
        data = json.dumps(self.fields).encode()
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            self.error = response.read().decode()
            return
        while line := response.readline():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            self.error = self.error or event.get("error")
            self.text += "".join(c["text"] for c in event.get("choices", []))
            self.n_events += 1


def watch(look, seconds):
    """(when look() last changed, in ms from now, or None; how many times it was looked)."""
    began, last, n, value = time.monotonic(), None, 0, look()
    while time.monotonic() - began < seconds:
        new, n = look(), n + 1
        if new != value:
            value, last = new, (time.monotonic() - began) * 1e3
    return last, n
