"""Safetensors files on numpy, single or sharded; BF16 and MXFP4 values as float64."""
import json
import os
import struct

import numpy as np

DTYPES = {"F32": np.float32, "F64": np.float64, "BF16": np.uint16, "F16": np.float16,
          "U8": np.uint8, "I32": np.int32, "I64": np.int64}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def bf16_bits(x):
    """float32 values to BF16 bits, to nearest, ties to even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16).reshape(np.shape(x))


def bf16_values(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)


def mxfp4_values(codes, scales):
    """codes U8 [out, in/2] (low nibble first), scales U8 [out, in/32] -> float64 [out, in]."""
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
    values = np.where(nibbles & 8, -1.0, 1.0) * E2M1[nibbles & 7]
    groups = values.reshape(codes.shape[0], -1, 32)
    return (groups * np.exp2(scales.astype(np.float64) - 127)[..., None]).reshape(values.shape)


def load_file(path):
    """name -> array as stored; BF16 becomes float32."""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, entry in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        a = np.frombuffer(raw[8 + n + begin:8 + n + end], DTYPES[entry["dtype"]])
        a = a.reshape(entry["shape"])
        out[name] = bf16_values(a) if entry["dtype"] == "BF16" else a
    return out


def load_folder(folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return load_file(os.path.join(folder, "model.safetensors"))
    with open(index) as f:
        files = sorted(set(json.load(f)["weight_map"].values()))
    out = {}
    for name in files:
        out.update(load_file(os.path.join(folder, name)))
    return out


def save(path, tensors):
    """tensors: name -> (dtype name, array); BF16 arrays are given as floats and rounded."""
    head, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, a) in tensors.items():
        raw = (bf16_bits(a) if dtype == "BF16" else np.ascontiguousarray(a, DTYPES[dtype])).tobytes()
        head[name] = {"dtype": dtype, "shape": list(np.shape(a)), "data_offsets": [at, at + len(raw)]}
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for raw in blobs:
            f.write(raw)
    return at
