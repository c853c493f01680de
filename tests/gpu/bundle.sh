#!/usr/bin/env bash
# bundle.sh BUILD_FOLDER OUT_FOLDER [program ...]: copies programs, stripped, with the shared libraries another machine may
# lack (all but glibc, the C++ runtime, CUDA and the driver). Run there with LD_LIBRARY_PATH=OUT_FOLDER.
#   PACK=FILE  packs it too, as a .tar.xz: programs that hold the same kernels take little more room there than one of them.
#   MPI=1      puts Open MPI beside them (OUT_FOLDER/openmpi), for ranks on one machine that has none (tests/gpu/round.sh).
# Apache Arrow is 60 MB of it, but not where the build was configured with -DSINTER_ARROW=none.
set -euo pipefail
build=$1 out=$2
shift 2
mkdir -p "$out"
libraries_of() {
  ldd "$1" | awk '$3 ~ /^\// {print $3}' | grep -Ev '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libcuda|libcudart|libcublas|libcublasLt|libcudnn|libnvrtc|libnccl)[.-]' || true
}
copy_libraries() { libraries_of "$1" | while read -r library; do cp -L "$library" "$out/"; done; }

for program in "${@:-test_cuda}"; do
  path=$(find "$build" -maxdepth 3 -type f -name "$program" -perm -u+x | head -1)
  [ -n "$path" ] || { echo "bundle.sh: no program '$program' under $build" >&2; exit 1; }
  strip -o "$out/$program" "$path"
  copy_libraries "$path"
done
if [ "${MPI:-0}" = 1 ]; then
  where() { ompi_info --path "$1" --parsable | sed 's/^path:[a-z]*://'; }
  mkdir -p "$out/openmpi/bin" "$out/openmpi/mca" "$out/openmpi/share"
  cp -L "$(command -v mpirun)" "$out/openmpi/bin/mpirun"
  cp -r "$(where pkgdatadir)"/* "$out/openmpi/share/"
  copy_libraries "$out/openmpi/bin/mpirun"
  for component in "$(where pkglibdir)"/*.so; do  # without those of networks
    ldd "$component" | grep -qE 'uc[ptsm]|fabric|ibverbs|psm|rdmacm|usnic|munge' && continue
    cp "$component" "$out/openmpi/mca/"
    copy_libraries "$component"
  done
fi
du -sh "$out"
[ -z "${PACK:-}" ] || { tar cf - -C "$(dirname "$out")" "$(basename "$out")" | xz -9e --lzma2=dict=192MiB -T1 > "$PACK"; du -sh "$PACK"; }
