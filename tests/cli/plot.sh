# Curves of runs; args: program, scratch folder.
set -euo pipefail
sinter=$1; scratch=$2
rm -rf "$scratch"; mkdir -p "$scratch/a" "$scratch/b"; cd "$scratch"
for run in a b; do
  for step in 1 2 3 4; do
    echo "{\"step\":$step,\"tokens\":$((step * 100)),\"loss\":$((10 - step)).5,\"lr\":0.001,\"seconds\":2,\"validation_loss\":$((11 - step))}"
  done > $run/metrics.jsonl
done
printf '{"step":5,"tok' >> b/metrics.jsonl  # under way

"$sinter" plot a > a.txt
grep -q "validation" a.txt
grep -q "7.0000" a.txt  # the least validation loss
"$sinter" plot a b --x tokens --smooth 0.5 --html page.html --svg chart.svg --csv values.csv | grep -q "Wrote page.html"
grep -q "b, validation" page.html
[ "$(grep -c '<svg' page.html)" = 3 ]  # loss, validation_loss, lr
[ "$(wc -l < values.csv)" = 9 ]
python3 -c "import xml.dom.minidom; xml.dom.minidom.parse('chart.svg')"
refused() {  # status, words, command
  status=0; out=$("$sinter" "${@:3}" 2>&1) || status=$?
  [ "$status" = "$1" ] || { echo "exit status $status, expected $1: ${*:3}"; exit 1; }
  case "$out" in *"$2"*) ;; *) echo "'${*:3}' said: $out"; exit 1 ;; esac
}
refused 2 "did you mean 'loss'" plot a --key los
refused 1 "expected a run's folder" plot nowhere
echo "no json" >> a/metrics.jsonl
refused 1 "line 5" plot a
