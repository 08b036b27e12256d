# SPDX-License-Identifier: MIT
# Puts what `poold --print-config` says of each key in place of @KEYS@. Run by meson.build:
# awk -v poold=PROGRAM -f keys.awk cistern.conf.5.in

function key_lines(   command, line, help, section, at) {
    command = "\"" poold "\" --print-config"
    while ((command | getline line) > 0) {
        if (line ~ /^\[/) {
            if (section) print ".El"
            section = substr(line, 2, length(line) - 2)
            print ".Ss Section " section
            print ".Bl -tag -width Ds"
        } else if (line ~ /^; [a-z_]+ =/) {
            at = index(line, " = ")
            if (!at) at = length(line)
            print ".It Cm " section "." substr(line, 3, at - 3)
            print help
            print "Preset:"
            print (at + 3 > length(line)) ? "empty." : ".Li " substr(line, at + 3) " ."
        } else if (line ~ /^; /) {
            help = substr(line, 3)
        }
    }
    if (!section) exit 1
    print ".El"
}

$0 == "@KEYS@" { key_lines(); next }
{ print }
