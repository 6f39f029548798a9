"""Compiles a CUDA source with NVRTC, without a GPU: `nvrtc_compile.py FILE.cu ARCH [OUT.cubin]`.

The library comes from the PyPI package nvidia-cuda-nvrtc. Exit status 1 and the compiler's log on an error, 3
when the library is missing.
"""

import ctypes
import glob
import os
import site
import sys
import sysconfig


def library():
    places = [sysconfig.get_paths()["purelib"], *site.getsitepackages()]
    for place in places:
        # CUDA 13 wheels have nvidia/cu13/lib, CUDA 12 wheels nvidia/cuda_nvrtc/lib.
        for path in sorted(glob.glob(os.path.join(place, "nvidia", "cu*", "lib", "libnvrtc.so*"))):
            if "builtins" not in path and ".alt." not in path:
                return ctypes.CDLL(path)
    print("NVRTC is missing: pip install nvidia-cuda-nvrtc", file=sys.stderr)
    sys.exit(3)


def main():
    source, arch = sys.argv[1:3]
    nvrtc = library()
    with open(source, "rb") as f:
        text = f.read()
    program = ctypes.c_void_p()
    code = nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, os.path.basename(source).encode(), 0, None, None)
    if code:
        print(f"{source}: NVRTC cannot start (error {code})", file=sys.stderr)
        return 1
    options = [f"-arch={arch}", "-std=c++17", "-default-device", "-fmad=false"]
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    code = nvrtc.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if code:
        print(f"{source} for {arch}:", file=sys.stderr)
        print("\n".join(log.value.decode(errors="replace").splitlines()[:80]), file=sys.stderr)
        return 1
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    if len(sys.argv) > 3:
        with open(sys.argv[3], "wb") as f:
            f.write(cubin.raw)
    print(f"{source} for {arch}: {size.value} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
