report_to_head() { # say the own name at the first node's port
    local _
    for _ in {1..120}; do
        if printf '%s\n' "$node" >"/dev/tcp/$master_addr/$master_port"; then return; fi
        sleep 0.5
    done 2>/dev/null
    fault "cannot reach port $master_port of the first node at $master_addr"
    return 1
}

hear_all() { # on the first node: who does not say its name within 90 s
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
missing, end = set(names) - {me}, time.monotonic() + 90
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
