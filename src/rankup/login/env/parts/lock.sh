
# ---- requirements.lock ---------------------------------------------------------------------------
write_lock() {
    local links new=requirements.lock.new.$$ work
    [ -n "$wheel" ] || fail "the lock has to name rankup, and wheels/ has none: rankup env create"
    find_installer
    find_links
    work=$(mktemp -d "$here/.lock-XXXXXX")
    made_here+=("$work" "$here/$new")
    basename "$wheel" | sed -E 's/^rankup-([^-]+)-.*/rankup==\1/' >"$work/own.in"
    if [ -f kernel.sh ]; then echo ipykernel >>"$work/own.in"; fi
    say "looking for versions, with $installer"
    if [ "$installer" = uv ]; then
        uv pip compile --quiet --generate-hashes --no-header --python "$base" "${links[@]}" \
            --output-file "$work/found" requirements.txt "$work/own.in" >/dev/null || explain_failure
    else
        lock_with_pip || explain_failure
    fi
    refuse_without_hash "$work/found"
    {
        echo "# Written by \`rankup env lock\` (bash setup.sh lock); \`bash setup.sh\` installs from it."
        echo "# for: $(lock_is_for)"
        echo "# requirements: $(_env_digest requirements.txt)"
        cat "$work/found"
    } >"$new"
    mv "$new" requirements.lock
    drop_older_wheels # only now: the old lock names one of them
    say "requirements.lock names $(grep -c '^[^ #]' requirements.lock) packages"
}

lock_with_pip() { # in an empty venv, so that what is in venv/ plays no role; modules do
    new_venv "$work/venv" &&
        "$work/venv/bin/python" -m pip install --quiet --dry-run --report "$work/report" \
            "${links[@]}" -r requirements.txt -r "$work/own.in" &&
        "$work/venv/bin/python" - "$work/report" >"$work/found" <<'END'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    found = json.load(file)["install"]
for item in sorted(found, key=lambda item: item["metadata"]["name"].lower()):
    name, version = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
    source = item["download_info"]
    archive = source.get("archive_info", {})
    hashes = dict(archive.get("hashes") or {})
    if not hashes and "=" in archive.get("hash", ""):  # pip before 23
        hashes = dict([archive["hash"].split("=", 1)])
    line = f"{name} @ {source['url']}" if item.get("is_direct") else f"{name}=={version}"
    if "sha256" in hashes:
        line += f" \\\n    --hash=sha256:{hashes['sha256']}"
    print(line)
END
}

refuse_without_hash() { # folders and git repositories have none, and nothing could be installed
    local line
    line=$(grep -E '^[^ #]' "$1" | grep -vE '\\$' | head -n 1 || true)
    if [ -n "$line" ]; then
        fail "'$line' has no hash, so that it cannot be locked: give it as a wheel, or work without a lock"
    fi
}
