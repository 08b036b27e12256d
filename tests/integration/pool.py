# SPDX-License-Identifier: MIT
"""Reads, and where a story wants it breaks, the pool's files; the layout is proto/pool_shm.h's."""
import mmap
import struct

HEADER = struct.Struct("<QIIQQ5Q6IQ4I6IQ")
HEADER_FIELDS = (
    "magic version header_bytes pool_id bytes processes_off pipelines_off rows_off tables_off"
    " chunks_off n_rows n_chunks chunk_cells table_entries grow_chunks n_stages poold_incarnation"
    " poold_pid lane_chunks pipeline_lanes memory n_layers n_kv_heads head_dim kv block_cells context_tokens block_bytes"
).split()
ROW_BYTES, LAST_USE_OFF, BODY_OFF, BODY_BYTES = 320, 8, 64, 128
BODY = struct.Struct("<7Q9I4xQ")
BODY_FIELDS = (
    "generation last_window arrival salt op_incarnation op_number copy_entry copy_cells state lease"
    " base keep n_entries pipeline lane life"
).split()
ARENA = struct.Struct("<QQQIIIIII")
RUN = struct.Struct("<IIQQ")
PAGE = struct.Struct("<QQIIIIQQQQ")
TOKENS_OFF = 64
TEXT_BYTES = 128
FREE, ACTIVE, WAITING, CLOSING, IDLE = range(5)


class Pool:
    def __init__(self, folder):
        self.folder = folder
        self.control = self.map("control")
        self.header = dict(zip(HEADER_FIELDS, HEADER.unpack_from(self.control)))
        texts = self.control[HEADER.size : HEADER.size + 2 * TEXT_BYTES]
        self.fingerprint, self.arithmetic = (
            texts[at : at + TEXT_BYTES].split(b"\0")[0].decode() for at in (0, TEXT_BYTES)
        )

    def map(self, name):
        with open(self.folder / name, "r+b") as f:
            return mmap.mmap(f.fileno(), 0)

    def row(self, index):
        """The body in force, read as pool_row_read() does, with its table."""
        at = self.header["rows_off"] + index * ROW_BYTES
        while True:
            (version,) = struct.unpack_from("<Q", self.control, at)
            body = BODY.unpack_from(self.control, at + BODY_OFF + (version & 1) * BODY_BYTES)
            if struct.unpack_from("<Q", self.control, at)[0] == version:
                break
        row = dict(zip(BODY_FIELDS, body), index=index)
        off = self.table_off(index)
        row["table"] = struct.unpack_from(f"<{row['n_entries']}Q", self.control, off)
        return row

    def tokens(self, row):
        """The ids of the cells below a row's base, and their kinds: "p" of a prompt, "g" generated."""
        words, cells = memoryview(self.map("tokens"))[TOKENS_OFF:].cast("I"), self.header["chunk_cells"]
        at = [(row["table"][i // cells] & 0xFFFFFFFF) * cells + i % cells for i in range(row["base"])]
        found = [words[i] for i in at]
        return [w & 0x7FFFFFFF for w in found], "".join("pg"[w >> 31] for w in found)

    def age(self, row, seconds):
        """As if it had been used so long before it was."""
        at = self.header["rows_off"] + row["index"] * ROW_BYTES + LAST_USE_OFF
        (last_use,) = struct.unpack_from("<Q", self.control, at)
        struct.pack_into("<Q", self.control, at, max(last_use - int(seconds * 1e6), 1))

    def table_off(self, index):
        return self.header["tables_off"] + index * self.header["table_entries"] * 8

    def rows(self, *states):
        rows = (self.row(i) for i in range(self.header["n_rows"]))
        return [r for r in rows if (r["state"] in states if states else r["state"] != FREE)]

    def check_tables(self):
        """No chunk stands past its generation, none is out of range, none twice in one table."""
        for row in self.rows():
            chunks = [e & 0xFFFFFFFF for e in row["table"]]
            assert len(set(chunks)) == len(chunks), row
            for entry, chunk in zip(row["table"], chunks):
                assert 1 <= chunk <= self.header["n_chunks"], row
                (generation,) = struct.unpack_from(
                    "<I", self.control, self.header["chunks_off"] + chunk * 8
                )
                assert entry >> 32 <= generation, row

    def free_chunk(self):
        taken = {e & 0xFFFFFFFF for r in self.rows() for e in r["table"]}
        return next(c for c in range(self.header["n_chunks"], 0, -1) if c not in taken)


def read_page(folder, stage, pipeline=0):
    with open(folder / f"page-{pipeline}-{stage}", "rb") as f:
        _, _, _, _, _, _, drained, windows, bubbles, busy_us = PAGE.unpack(f.read(PAGE.size))
    return {"drained": drained, "windows": windows, "bubbles": bubbles, "busy_us": busy_us}


class Arena:
    """One stage's K/V."""

    def __init__(self, pool, name):
        self.data = pool.map(name)
        fields = ARENA.unpack_from(self.data)
        _, _, _, self.stage, n_runs, self.chunk_cells, self.block_cells, self.n_chunks, _ = fields
        self.runs = [RUN.unpack_from(self.data, ARENA.size + i * RUN.size) for i in range(n_runs)]
        self.head_dim = pool.header["head_dim"]
        self.value_bytes = {1: 4, 2: 2}[pool.header["kv"]]

    def chunk_range(self, run, chunk):
        _, _, off, block_bytes = run
        chunk_bytes = self.chunk_cells // self.block_cells * block_bytes
        return off + chunk * chunk_bytes, chunk_bytes

    def copy_chunk(self, source, target):
        for run in self.runs:
            at, n = self.chunk_range(run, source)
            to, _ = self.chunk_range(run, target)
            self.data[to : to + n] = self.data[at : at + n]

    def flip_key(self, chunk, cell):
        """Changes the sign of every value of the first head's key of one cell in the first layer."""
        at, _ = self.chunk_range(self.runs[0], chunk)
        at += cell // self.block_cells * self.runs[0][3]
        at += cell % self.block_cells * self.head_dim * self.value_bytes
        for i in range(self.head_dim):
            self.data[at + (i + 1) * self.value_bytes - 1] ^= 0x80
