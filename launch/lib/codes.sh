# shellcheck shell=bash
# What the exit codes of trainers ask for; docs/launch.md has the table.

meaning() { # CODE
    case $1 in
        0) echo 'done' ;;
        2 | 3 | 4 | 5 | 6 | 7 | 8) echo stop ;;          # the same would happen again
        42) echo preempted ;;                            # state saved
        75) echo network ;;                              # it failed for ten minutes; nothing is harmed
        134 | 137 | 143 | 200) echo restart ;;           # peer lost, killed, hang
        *) echo crash ;;
    esac
}

# One code for all hosts, from REPORT. The first that says why: a host with bad data ends with 4 and its peers with 134.
verdict() {
    local code kind
    for kind in stop network crash preempted restart 'done'; do
        while read -r _ code; do
            [[ $code != none ]] || code=137 # the host was made anew, and knows nothing of the run
            [[ $(meaning "$code") != "$kind" ]] || { echo "$code" && return; }
        done <<<"$REPORT"
    done
}
