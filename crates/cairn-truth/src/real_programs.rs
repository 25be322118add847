//! Real programs that run with hooks in their allocations; every stack is compared.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::driver::{Ended, Following, Outcome, Workplace, is_installed};

/// A program and its work.
pub struct RealProgram {
    /// The name of its file on the path, or of a fixture program that [`Hooks::build`] compiles.
    pub name: &'static str,
    /// A shell command; `$N` is the amount of work.
    script: &'static str,
    /// The amounts of work in a short and in a long run.
    amounts: [u32; 2],
}

const fn program(name: &'static str, script: &'static str, amounts: [u32; 2]) -> RealProgram {
    RealProgram { name, script, amounts }
}

/// The programs; those that are installed with every C compiler come first.
pub const PROGRAMS: &[RealProgram] = &[
    program(
        "bash",
        "for i in $(seq $N); do x=$(echo a$i b | sed s/a/b/); y[i]=\"$x$x\"; done; echo ${#y[@]}",
        [40, 1500],
    ),
    program(
        "perl",
        "perl -e 'my %h; for (1..'$N') { my @a = map { \"$_$_\" } 1..9; $h{$_} = [sort @a]; eval { die {a=>$_} }; } print scalar keys %h'",
        [400, 12000],
    ),
    program(
        "gcc",
        "i=0; while [ $i -lt $N ]; do i=$((i+1)); echo 'static inline int f'$i'(int a) { for (int i = 0; i < a; i++) a ^= i; return a; } int g'$i'(int a) { return f'$i'(a) + 1; }'; done | gcc -O2 -x c -c -o /dev/null -",
        [10, 300],
    ),
    program(
        "g++",
        "echo '#include <map>\n#include <string>\nstd::map<std::string, int> m; int main() { return m[\"a\"]; }' | g++ -O1 -x c++ -c -o /dev/null -",
        [1, 1],
    ),
    program(
        "git",
        "git --version; git init -q $W/r; cd $W/r; for i in $(seq $N); do echo $i > f$i; git add f$i; done; git -c user.name=a -c user.email=b commit -qm x; git log --stat | tail -1; git gc -q",
        [3, 300],
    ),
    program(
        "python3",
        "PYTHONMALLOC=malloc python3 -c \"\nimport json, re\nfor i in range($N):\n    json.dumps(json.loads(json.dumps({'a': [1, 2, {'b': str(i)}]})))\n    re.sub('a+', 'b', 'caaat' * 3)\n    try:\n        {}[i]\n    except KeyError: pass\n    sorted([str(x) for x in range(9)], key=lambda x: -int(x))\n\"",
        [20, 3000],
    ),
    program(
        "sqlite3",
        "sqlite3 :memory: 'create table t(a,b); with recursive n(i) as (select 1 union all select i+1 from n where i<'$N') insert into t select i, hex(randomblob(9)) from n; create index x on t(b); select count(*), max(b) from t group by a % 7;'",
        [300, 20000],
    ),
    program(
        "gdb",
        "gdb -q -batch -ex 'info functions nosuch' -ex 'info types nosuch' --args $(command -v bash)",
        [1, 1],
    ),
    program(
        "jq",
        "seq $N | jq -c '[range(.%9)] | map(tostring) | {a: ., b: length, c: (try error(\"x\") catch .)}' | tail -1",
        [100, 5000],
    ),
    program(
        "node",
        "node -e 'let a = []; for (let i = 0; i < '$N'; i++) a.push(JSON.stringify({i, s: \"x\".repeat(i % 99)})); require(\"zlib\").gzipSync(a.join())'",
        [100, 20000],
    ),
    program(
        "openssl",
        "openssl genrsa 1024 2>/dev/null | openssl rsa -text -noout >/dev/null; openssl speed -seconds 1 -evp sha256 >/dev/null 2>&1; openssl list -digest-algorithms",
        [1, 1],
    ),
    program(
        "rustc",
        "i=0; while [ $i -lt $N ]; do i=$((i+1)); echo 'pub fn f'$i'(a: &[u32]) -> Vec<u32> { a.iter().map(|x| x * '$i').collect() }'; done | rustc --edition 2021 --crate-type lib -O -o $W/x.rlib -",
        [1, 60],
    ),
    program(
        "ruby",
        "ruby -e 'h = {}; '$N'.times { |i| h[i.to_s] = [i, i.to_s * 3]; begin; raise \"x\"; rescue; end }; puts h.size'",
        [100, 20000],
    ),
    program(
        "xmllint",
        "(echo '<a>'; i=0; while [ $i -lt $N ]; do i=$((i+1)); echo \"<b c='$i'>x</b>\"; done; echo '</a>') | xmllint --format - | tail -1",
        [100, 20000],
    ),
    program(
        "clang",
        "echo 'int f(int a) { for (int i = 0; i < a; i++) a ^= i; return a; }' | clang -O2 -x c -c -o /dev/null -",
        [1, 1],
    ),
    program("java", "java -Xshare:auto -version", [1, 1]),
    program("vim", "vim -es -u NONE -c 'call range(10)->map({i -> string(i)})' -c q", [1, 1]),
    program(
        "openssl",
        "openssl req -x509 -newkey rsa:1024 -keyout /dev/null -nodes -subj /CN=a -out /dev/null",
        [1, 1],
    ),
    program(
        "gpg",
        "GNUPGHOME=$W gpg --list-config >/dev/null; GNUPGHOME=$W gpg --print-md SHA256 /etc/passwd",
        [1, 1],
    ),
    program(
        "awk",
        "awk 'BEGIN { for (i = 0; i < '$N'; i++) { a[i] = i \"x\" substr(\"abcdef\", i % 5); gsub(/x/, \"yy\", a[i]) } print length(a) }'",
        [100, 20000],
    ),
    program("find", "find /usr/share/doc /usr/lib -name '*a*' | sort | tail -1", [1, 1]),
];

/// The amount of work of the programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Seconds.
    Short,
    /// A million stacks.
    Long,
}

/// Programs that are compiled here: their names, sources and flags. They lie in `$D`.
const BUILT: &[(&str, &str, &[&str])] = &[
    ("walks", "heap/walks.c", &["-O2", "-fno-builtin-malloc"]),
    ("walks-fp", "heap/walks.c", &["-O2", "-fno-builtin-malloc", "-fno-omit-frame-pointer"]),
    ("recursions", "heap/recursions.cpp", &["-O2"]),
];

/// Programs whose stacks change with nearly every capture.
///
/// Random walks, also built with frame pointers and with four threads, and recursion through data.
pub const CHANGING: &[RealProgram] = &[
    program("walks", "$D/walks $N 1", [3000, 300_000]),
    program("walks-fp", "$D/walks-fp $N 1", [3000, 300_000]),
    program("walks", "$D/walks $N 4", [3000, 300_000]),
    program("walks-fp", "$D/walks-fp $N 4", [3000, 100_000]),
    program("recursions", "$D/recursions parse $N; $D/recursions match 2", [2, 400]),
    program("recursions", "$D/recursions rewrite $N; $D/recursions scene 2", [3, 30]),
];

/// Runs the programs with hooks.
pub struct Hooks {
    workplace: Workplace,
    preload: PathBuf,
}

impl Hooks {
    /// Builds the library with the hooks.
    ///
    /// # Errors
    ///
    /// The compiler's messages.
    pub fn build(name: &str) -> Outcome<Self> {
        let workplace = Workplace::new(name)?;
        let preload = workplace.compile("hooks.c", "hooks.so", &["-O2", "-shared", "-fPIC"])?;
        for (name, source, flags) in BUILT {
            if !source.ends_with(".cpp") || is_installed("c++") {
                workplace.compile(source, name, flags)?;
            }
        }
        Ok(Self { workplace, preload })
    }

    /// Runs one program; `None` when it is not installed.
    ///
    /// # Errors
    ///
    /// When it could not be started.
    pub fn run(&self, program: &RealProgram, length: Length, following: Following) -> Outcome<Option<Ended>> {
        if !is_installed(program.name) && !self.workplace.path(program.name).is_file() {
            return Ok(None);
        }
        let amount = program.amounts[usize::from(length == Length::Long)];
        let files = self.workplace.path("files");
        let _ = std::fs::remove_dir_all(&files);
        std::fs::create_dir_all(&files).map_err(|error| error.to_string())?;
        let mut command = Command::new("bash");
        command.args(["-c", program.script]).env("N", amount.to_string()).env("W", files);
        command.env("D", self.workplace.path(""));
        following.apply(&mut command);
        command.env("LD_PRELOAD", &self.preload).stdout(Stdio::null()).stderr(Stdio::null());
        self.workplace.run(&mut command, Duration::from_secs(600)).map(Some)
    }
}
