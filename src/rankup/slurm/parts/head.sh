# ---- the address all nodes meet at ---------------------------------------------------------------
resolve() { # IPv4 of a name; the own name often resolves to loopback, which no other node can reach
    getent ahostsv4 "$1" | awk '$1 !~ /^127\./ { print $1; exit }'
}

head_address() {
    local address node_addr
    if [ -n "$suffix" ]; then
        address=$(resolve "$1$suffix")
        if [ -n "$address" ]; then echo "$address" && return; fi
        echo "rankup: $1$suffix does not resolve; trying $1" >&2
    fi
    address=$(resolve "$1")
    if [ -n "$address" ]; then echo "$address" && return; fi
    node_addr=$(scontrol show node --oneliner "$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
    case $node_addr in
    *[!0-9.]*) resolve "$node_addr" ;; # a name
    *) echo "$node_addr" ;;            # an address: Slurm's word is taken as it is
    esac
}

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
master_addr=$(head_address "$head")
if [ -z "$master_addr" ]; then
    end_life 1 "no address for $head: neither the resolver nor Slurm's NodeAddr has one that other nodes could reach"
fi
master_port=$((10000 + SLURM_JOB_ID % 20000)) # of this job alone
for _ in 1 2 3 4 5 6 7 8 9; do                # unless somebody sits there
    timeout 2 bash -c "</dev/tcp/$master_addr/$master_port" 2>/dev/null || break
    master_port=$((master_port + 1))
done
