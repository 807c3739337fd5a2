#!/bin/bash
# sbatch cluster/slurm.sh CONFIG --out /shared/runs/NAME [section.field=value ...]
# One run on the nodes of a Slurm job (cluster/README.md). The same command resumes the run folder.
#
# To replace, here or as options of sbatch: partition and account, nodes, CPUs, GPUs and hours.
# To set in your shell, if the defaults do not fit:
#   ENCODER_AUDIT_ENV   environment that holds encoder-audit; default: the one that is active at sbatch
#   ENCODER_AUDIT_IP    address of the first node on the fast network; default: its first address
#   ENCODER_AUDIT_PORT  port of Ray on the first node; default: 6379
#SBATCH --job-name=encoder-audit
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --output=encoder-audit-%j.log
# exclusive: symmetric-run refuses a node with another Ray, and stops every Ray of the user at its end.
# requeue: a job that loses a node starts again and resumes.
set -euo pipefail

if [[ $# -eq 0 ]]; then
    echo "usage: sbatch cluster/slurm.sh CONFIG --out /shared/runs/NAME [section.field=value ...]" >&2
    exit 2
fi
if [[ -n "${ENCODER_AUDIT_ENV:-}" ]]; then
    # shellcheck source=/dev/null
    source "$ENCODER_AUDIT_ENV/bin/activate"
fi

# The batch script runs on the first node of the job. A name could stand for 127.0.1.1 there, so this takes an address.
read -r first _ < <(hostname --all-ip-addresses)
address="${ENCODER_AUDIT_IP:-$first}:${ENCODER_AUDIT_PORT:-6379}"

# Other users reach the ports of a node, so every client has to show the token, which stands in the shared home.
export RAY_AUTH_MODE=token
(umask 077 && ray get-auth-token --generate > /dev/null)
chmod 600 ~/.ray/auth_token
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=600    # seconds; nodes of a job do not start at the same time
export RAY_ADDRESS="$address"                        # of the nodes that symmetric-run counts; else it seeks in /tmp/ray

# Ray's folder is the job's own: /tmp/ray may belong to another user. Its sockets allow about 60 bytes for the path.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray symmetric-run --address "$address" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" \
    --temp-dir="/tmp/ray-$SLURM_JOB_ID" --disable-usage-stats \
    -- encoder-audit audit "$@" --address "$address" --yes
