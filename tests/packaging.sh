# Installs, packs and removes the program; args: program, scratch folder, [root]. With `root` the .deb is installed in a fresh
# Debian 12 (mmdebstrap, as root, with a mirror in reach; else status 77: left out).
set -euo pipefail
program=$(realpath "$1"); scratch=$2; here=$(cd "$(dirname "$0")/.." && pwd)
rm -rf "$scratch"; mkdir -p "$scratch"; scratch=$(realpath "$scratch")
export BUILD=$scratch/built; mkdir -p "$BUILD"; cp "$program" "$BUILD/sinter"
cd "$here"
try() {  # PROGRAM: what a new user does first
  local version plan  # whole texts: a grep that ends early would break the program's pipe
  version=$("$1" --version) && plan=$("$1" plan gpt2) || return 1
  grep -q '^sinter ' <<< "$version" && grep -q '124,439,808' <<< "$plan"
}

make -s install-files PREFIX="$scratch/prefix"
try "$scratch/prefix/bin/sinter"
[ "$(find "$scratch/prefix" -name 'sinter.1' -o -name 'sinter.fish' -o -name '_sinter' | wc -l)" = 3 ]
bash -n "$scratch/prefix/share/bash-completion/completions/sinter"
[ -f "$scratch/prefix/share/sinter/recipes/quickstart.toml" ]
echo mine > "$scratch/prefix/share/mine"
make -s uninstall PREFIX="$scratch/prefix"
[ "$(find "$scratch/prefix" -type f)" = "$scratch/prefix/share/mine" ] || { find "$scratch/prefix" -type f; exit 1; }

tools/package tarball "$scratch/sinter.tar.gz"
mkdir "$scratch/elsewhere"; tar -C "$scratch/elsewhere" -xzf "$scratch/sinter.tar.gz"
try "$scratch"/elsewhere/sinter-*/bin/sinter

command -v dpkg-deb > /dev/null || { echo "no dpkg here: the Debian package is left out"; exit 0; }
tools/package deb "$scratch/sinter.deb"
info=$(dpkg-deb --info "$scratch/sinter.deb")
grep -q '^ Depends: .*libc6' <<< "$info"
[ "${3:-}" = root ] || exit 0
command -v mmdebstrap > /dev/null && [ "$(id -u)" = 0 ] || { echo "no mmdebstrap or not root: left out"; exit 77; }
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirrors=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true)
printf '%s\n' "$mirrors" > "$scratch/sources"
mmdebstrap --quiet --variant=apt "--customize-hook=copy-in $scratch/sinter.deb /tmp" \
  '--customize-hook=chroot "$1" apt-get install -y -qq /tmp/sinter.deb >/dev/null' \
  '--customize-hook=chroot "$1" sinter --version' '--customize-hook=chroot "$1" sinter plan gpt2 --gpus 8xH100' \
  "$suite" /dev/null || { echo "a fresh root could not be made or used"; exit 1; }
