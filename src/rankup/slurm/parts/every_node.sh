on_every_node() { # on_every_node SRUN_OPTION FUNCTION [WORD...]: a function of this script, per node
    local option=$1
    shift
    # --wait=0: what rank 0 does after the others have ended, an export, may take long.
    # What it uses goes along as text; $SLURM_NODEID and the like are then read on the node itself.
    srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --relative=0 --cpu-bind=none \
        --wait=0 "$option" ${srun_options[@]+"${srun_options[@]}"} bash -c "$(
            declare -p nodes ranks gpus needs programs rank master_addr master_port
            declare -f preflight hear_all report_to_head launch
        ); \"\$@\"" bash "$@"
}
