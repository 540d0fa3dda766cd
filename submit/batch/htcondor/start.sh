#!/bin/sh
# Runs the worker of a job that receives plain files only: inputs.tar in, output.tar out.
# Argument: number of attempts before this submission.
previous=$1

# HTCondor counts the starts of the job in its ad; other batch systems start it once.
starts=$(sed -n 's/^NumShadowStarts = \([0-9]*\)$/\1/p' "${_CONDOR_JOB_AD:-/dev/null}")
number=$((previous + ${starts:-1}))
output=output/attempt-$number

tar -xf inputs.tar || exit 126
# ARC names a proxy also for jobs that were submitted with a token.
[ -e "${X509_USER_PROXY:-/}" ] || unset X509_USER_PROXY
if [ -s output.tar ]; then # the output of an earlier start
  tar -xf output.tar
fi
mkdir -p "$output" || exit 126
sh worker.pyz run job.json --once --attempt "$number" --output "$output" --work work \
  >"$output/worker.out" 2>"$output/worker.err" &
worker=$!
trap 'kill -TERM "$worker" && passed_on=yes' HUP INT TERM

passed_on=yes
while [ "$passed_on" ]; do # a signal ends the wait, not the worker
  passed_on=
  wait "$worker"
  code=$?
done
tar -cf output.tar output
if [ "$code" -gt 128 ]; then # a signal ended the worker: end by it, too
  trap - HUP INT TERM
  kill "-$((code - 128))" "$$"
fi
exit "$code"
