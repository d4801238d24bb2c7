#!/usr/bin/env bash
# Compiles the GPU kernels to PTX, which is checked in: nobody else needs a CUDA toolkit. The
# compiler is NVIDIA's run-time compiler, out of a wheel: one library, no toolkit, no GPU.
# 11.8 is the oldest that is still offered: its PTX is understood by drivers from 520 on.
source "$(dirname "$0")/lib.sh"

compiler=nvidia-cuda-nvrtc-cu11==11.8.89
folder=dataplane/fabric/cuda

[ -x "$tools/nvrtc/bin/python" ] || python3 -m venv "$tools/nvrtc"
"$tools/nvrtc/bin/pip" install --quiet "$compiler"

"$tools/nvrtc/bin/python" - "$folder/kernels.cu" "$folder/kernels.ptx" <<'PYTHON'
import ctypes
import glob
import hashlib
import sys
import sysconfig

source_path, target_path = sys.argv[1:]
packages = sysconfig.get_paths()["purelib"]
builtins, library = (
    glob.glob(f"{packages}/nvidia/cuda_nvrtc/lib/{name}")[0]
    for name in ("libnvrtc-builtins.so*", "libnvrtc.so*")
)
ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
nvrtc = ctypes.CDLL(library)
source = open(source_path, "rb").read()
program = ctypes.c_void_p()
size = ctypes.c_size_t()


def text(size_of, fetch):
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    fetch(program, buffer)
    return buffer.value.decode()


made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None)
options = [b"--gpu-architecture=compute_70", b"--std=c++17"]
made = made or nvrtc.nvrtcCompileProgram(
    program, len(options), (ctypes.c_char_p * len(options))(*options)
)
sys.stderr.write(text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog))
if made:
    sys.exit(made)
ptx = text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
# What the compiler says of itself at the top goes, and a blank lead into the rest.
lines = [line.expandtabs(4).rstrip() for line in ptx.splitlines() if not line.startswith("//")]
body = "\n".join(lines).strip("\n")
with open(target_path, "w") as target:
    target.write(f"// source sha256 {hashlib.sha256(source).hexdigest()}\n")
    target.write("// Made by `make kernels` out of kernels.cu; do not edit.\n")
    target.write(f"{body}\n")
PYTHON
say "wrote $folder/kernels.ptx"
