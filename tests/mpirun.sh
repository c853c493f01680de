#!/bin/sh
# mpirun for tests: as root, more ranks than cores, one thread a rank, waits that yield the processor.
# Usage: mpirun.sh RANKS PROGRAM [ARGUMENTS...]
ranks=$1
shift
export SINTER_THREADS=1
root=
[ "$(id -u)" = 0 ] && root=--allow-run-as-root
exec mpirun $root --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl self,vader \
  --mca btl_vader_single_copy_mechanism none -n "$ranks" "$@"
