report_to_head() { # say the own name at the first node's port
    # shellcheck disable=SC2016 # bash below fills it in
    local _ say='printf "%s\n" "$1" >"/dev/tcp/$2/$3"'
    for _ in {1..120}; do # at a port that a firewall drops a connect alone takes minutes
        if timeout 5 bash -c "$say" bash "$node" "$master_addr" "$master_port"; then return; fi
        if [ "$SECONDS" -gt $((60 + nodes / 10)) ]; then break; fi
        sleep 0.5
    done 2>/dev/null
    fault "cannot reach port $master_port of the first node at $master_addr"
    return 1
}

hear_all() { # on the first node: who does not say its name in time (90 s, of 1000 nodes 190 s)
    local names
    mapfile -t names < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
    python3 -c '
import socket, sys, time
address, port, me, *names = sys.argv[1:]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind((address, int(port)))
except OSError as error:
    sys.exit(f"preflight: node {me}: cannot listen at {address}:{port}: {error.strerror}")
server.listen(len(names))
missing, end = set(names) - {me}, time.monotonic() + 90 + len(names) / 10
while missing:
    try:
        server.settimeout(max(0.01, end - time.monotonic()))
        caller, _ = server.accept()
        caller.settimeout(5)
        missing.discard(caller.recv(300).decode(errors="replace").strip())
    except OSError:
        if time.monotonic() >= end:
            silent = " ".join(sorted(missing))
            sys.exit(f"preflight: {me} at {address}:{port} has not heard from: {silent}")
' "$master_addr" "$master_port" "$node" "${names[@]}"
}
