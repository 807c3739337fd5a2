#!/bin/bash
# sbatch cluster/slurm.sh CONFIG --out /shared/runs/NAME [section.field=value ...]
# One run on the nodes of a Slurm job (cluster/README.md). The same command resumes the run folder.
#
# To replace, here or as options of sbatch: partition and account, nodes, CPUs, memory, GPUs and hours.
# To set in your shell, if the defaults do not fit:
#   ENCODER_AUDIT_ENV   environment that holds encoder-audit; default: the one that is active at sbatch
#   ENCODER_AUDIT_IP    address of the first node on the fast network; default: its first address
#   ENCODER_AUDIT_PORT  port of Ray on the first node; default: a free one
#SBATCH --job-name=encoder-audit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --output=encoder-audit-%j.log
# signal: two minutes before the time limit this script, and nothing else, is told to end; the run saves its trainings.
# requeue: a job that loses a node starts again and resumes.
set -euo pipefail

if [[ $# -eq 0 ]]; then
    echo "usage: sbatch cluster/slurm.sh CONFIG --out /shared/runs/NAME [section.field=value ...]" >&2
    exit 2
fi
megabytes="${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * SLURM_CPUS_PER_TASK))}"
if [[ "$megabytes" -eq 0 ]]; then
    echo "slurm.sh: Slurm gives the job no bound of memory: give sbatch --mem or --mem-per-cpu, other than 0" >&2
    exit 2
fi
if [[ -n "${ENCODER_AUDIT_ENV:-}" ]]; then
    # shellcheck source=/dev/null
    source "$ENCODER_AUDIT_ENV/bin/activate"
fi

# The batch script runs on the first node of the job. A name could stand for 127.0.1.1 there, so this takes an address.
read -r first _ < <(hostname --all-ip-addresses)
ip="${ENCODER_AUDIT_IP:-$first}"

# Other jobs and users reach the ports of a node, so every client has to show the token of this job.
RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0    # Ray is ended after the run
export RAY_memory_monitor_refresh_ms=0            # it looks at the node, which others fill; Slurm bounds the job

# Ray takes free ports where it may (0). Only that of Ray Client, which nobody uses here, has to be named.
client="$(python -c '
import socket, sys
for port in range(20000 + int(sys.argv[2]) % 10000, 65536):
    try:
        socket.create_server((sys.argv[1], port)).close()
    except OSError:
        continue
    sys.exit(print(port))
sys.exit(f"slurm.sh: no port of {sys.argv[1]} is free; if ENCODER_AUDIT_IP is set, give an address of the first node")
' "$ip" "$SLURM_JOB_ID")"

# Ray's folder is the job's own: /tmp/ray may belong to another user. Its sockets allow about 60 bytes for the path.
folder="/tmp/ray-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"
node() { # one node of Ray, until it is told to end; its folder goes with it
    mkdir -m 700 "$1" || return
    trap : TERM
    local code=0
    ray start --temp-dir "$@" --block || code=$?
    rm -rf "$1"
    return "$code"
}

steps=()
start() { # a step of the job: so many nodes of Ray, from this number on, with these options
    srun --nodes="$1" --ntasks="$1" --ntasks-per-node=1 --relative="$2" --kill-on-bad-exit=1 --export=ALL \
        --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c "$(declare -f node); node \"\$@\"" bash "$folder" "${@:3}" \
        --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" \
        --memory="$((megabytes * 2 ** 20 * 6 / 10))" --object-store-memory="$((megabytes * 2 ** 20 * 3 / 10))" \
        --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 --disable-usage-stats &
    steps+=($!)
}

running() { # whether all these processes run
    local pid
    for pid in "$@"; do kill -0 "$pid" 2> /dev/null || return; done
}

driver=
beside() { # a command beside the steps, and its exit code; it is told to end if one of them ends
    "$@" &
    driver=$!
    while running "$driver" "${steps[@]}"; do sleep 1; done
    end_driver
}

end_driver() { # a second SIGTERM would break into what the first one makes it save: scancel tells all processes at once
    local code=0
    for _ in {1..10}; do
        running "$driver" || break
        sleep 1
    done
    kill "$driver" 2> /dev/null || true
    wait "$driver" || code=$?
    driver=
    return "$code"
}

end() { # the driver, then the steps, and with them every process of this job's Ray; nothing else on the nodes
    local code=$?
    trap '' TERM
    if [[ -n "$driver" ]]; then end_driver && code=0 || code=$?; fi
    kill "${steps[@]}" 2> /dev/null || true
    wait
    exit "$code"
}
trap end EXIT
trap 'exit 143' TERM

start 1 0 --head --node-ip-address="$ip" --port="${ENCODER_AUDIT_PORT:-0}" --ray-client-server-port="$client" \
    --include-dashboard=false --dashboard-port=0
until [[ -s "$folder/ray_current_cluster" ]]; do
    if ! running "${steps[@]}"; then
        echo "slurm.sh: Ray did not start on the first node; the lines above say why" >&2
        exit 1
    fi
    sleep 1
done
address="$(< "$folder/ray_current_cluster")"
if [[ "$SLURM_JOB_NUM_NODES" -gt 1 ]]; then
    start "$((SLURM_JOB_NUM_NODES - 1))" 1 --address="$address"
    beside timeout 600 python -c '
import sys, time, ray
ray.init(address=sys.argv[1], logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(2)
' "$address" "$SLURM_JOB_NUM_NODES" || {
        echo "slurm.sh: not all nodes joined Ray within ten minutes; the lines above say why" >&2
        exit 1
    }
fi
beside encoder-audit audit "$@" --address "$address" --yes
