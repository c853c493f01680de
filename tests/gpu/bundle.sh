#!/usr/bin/env bash
# bundle.sh BUILD_FOLDER OUT_FOLDER [program ...]: copies programs, stripped, with the shared libraries another machine may
# lack (all but glibc, the C++ runtime, CUDA and the driver). Run there with LD_LIBRARY_PATH=OUT_FOLDER. With PACK=FILE it is
# packed too, as a .tar.xz: programs that hold the same kernels take little more room there than one of them. Without Apache
# Arrow (60 MB) where the build was configured with -DSINTER_ARROW=none.
set -euo pipefail
build=$1 out=$2
shift 2
mkdir -p "$out"
for program in "${@:-test_cuda}"; do
  path=$(find "$build" -maxdepth 3 -type f -name "$program" -perm -u+x | head -1)
  [ -n "$path" ] || { echo "bundle.sh: no program '$program' under $build" >&2; exit 1; }
  strip -o "$out/$program" "$path"
  ldd "$path" | awk '$3 ~ /^\// {print $3}' | grep -Ev '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libcuda|libcudart|libcublas|libcublasLt|libcudnn|libnvrtc|libnccl)[.-]' |
    while read -r library; do cp -L "$library" "$out/"; done
done
du -sh "$out"
[ -z "${PACK:-}" ] || { tar cf - -C "$(dirname "$out")" "$(basename "$out")" | xz -9e --lzma2=dict=192MiB -T1 > "$PACK"; du -sh "$PACK"; }
