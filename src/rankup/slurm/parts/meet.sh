meet() { # every node says its name at the head's port; the head says who did not
    if [ "$SLURM_NODEID" != 0 ]; then
        for _ in {1..20}; do
            if printf '%s\n' "$node" >"/dev/tcp/$master_addr/$master_port"; then return; fi
            sleep 0.5
        done 2>/dev/null
        fault "cannot reach port $master_port of the first node at $master_addr"
        return 1
    fi
    local names
    mapfile -t names < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
    python3 -c '
import socket, sys
address, port, me, *names = sys.argv[1:]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    server.bind((address, int(port)))
except OSError as error:
    sys.exit(f"preflight: node {me}: cannot listen at {address}:{port}: {error.strerror}")
server.listen(len(names))
server.settimeout(20)
missing = set(names) - {me}
while missing:
    try:
        caller, _ = server.accept()
        caller.settimeout(5)
        missing.discard(caller.recv(300).decode(errors="replace").strip())
    except OSError:
        missing = " ".join(sorted(missing))
        sys.exit(f"preflight: no word within 20 s from: {missing} (their port {port} of {me} at {address})")
' "$master_addr" "$master_port" "$node" "${names[@]}"
}
