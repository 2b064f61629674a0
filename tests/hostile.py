"""Names and values that nobody writes by mistake, for every place that takes some from outside."""

# Each would make the file `MARK` where a shell executes it, or bash does arithmetic with it.
COMMANDS = (
    "$(touch${IFS}MARK)", "`touch${IFS}MARK`", "ZONES[$(touch${IFS}MARK)]", "a[$(touch MARK)]",
    "x=ZONES[$(touch MARK)]", "1+a[`touch${IFS}MARK`]", "PATH[0$(touch MARK)]",
    "$((a[$(touch MARK)]))", "; touch MARK", "&& touch MARK", "| touch MARK", "|| touch MARK",
    "& touch MARK #", "' ; touch MARK ; '", "\" ; touch MARK ; \"", "$'\\n'touch MARK",
    "x\ntouch MARK\n", "\ntouch MARK", "<(touch MARK)", ">MARK", "1 > MARK", "{touch,MARK}",
    "eval touch MARK", "() { :; }; touch MARK", "a'\"$(touch MARK)\"'", "1e touch MARK",
    "s/.*/touch MARK/e", "BEGIN{system(\"touch MARK\")}",
)  # fmt: skip
NUMBERS = (
    "", " ", "-1", "+1", "1.5", "1e9", "0x10", "2#1", "10#9", "64#_", "9" * 16, "9" * 400, "1 2",
    "1\n2", '٣', "1,000", "inf", "nan", "NaN", "true", "RANDOM", "SECONDS", "~1", "1_000",
)  # fmt: skip
# Names that lead out of a folder, or that are no names.
NAMES = (
    "..", ".", "../x", "../../../../../../../../tmp/x", "a/../../x", "a/..", "./x", "/x", "//x",
    "/etc/passwd", "a//x", "a/", "", "/", "a\u0000b", "a\nb", "a\rb", "a\tb", "a\u001b[2Jb",
    "a\u2028b", "..\\x", "a\\b", "C:\\x", "x" * 256, "x" * 10000000, "gs://other/x",
    "http://127.0.0.1:8080/x", "file:///etc/passwd",
)  # fmt: skip
# Odd, and harmless: they are names like any other where they are quoted.
ODD_NAMES = (
    "-rf",
    "--help",
    "...",
    "..x",
    "x..",
    "$(touch MARK)",
    "a b",
    "a'b",
    'a"b',
    "a;b",
    "~",
    "*",
    "ä",
    "名",
)
