//! The C programs of `examples/c`, built against the static library, run, and read. Names come from
//! `addr2line` on what the programs print, to distinguish a correct stack from a plausible one.

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{c_compiler, installed, output_of, run, scratch, workspace};

/// Compiles `examples/c/<name>.c`.
fn build(name: &str, flags: &[&str]) -> PathBuf {
    compile(&workspace().join("examples/c").join(format!("{name}.c")), name, flags)
}

fn compile(source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let program = scratch().join(name);
    // Without frame pointers, and without the one optimisation that takes frames off the stack.
    let mut compiler = c_compiler();
    compiler.args(["-O1", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"]).args(flags);
    compiler.arg(source).arg("-I").arg(installed().join("include"));
    run(compiler.arg(installed().join("lib/libcairn.a")).arg("-o").arg(&program));
    program
}

/// The functions of `program` that a printed stack goes through, innermost first.
fn functions(program: &Path, text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let (module, offset) = line.rsplit_once("+0x").unwrap_or_else(|| panic!("no module in {line:?}"));
        if !module.ends_with(&*program.to_string_lossy()) {
            continue;
        }
        let offset = u64::from_str_radix(offset, 16).unwrap();
        // Only the innermost frame of an interrupted stack is no return address; a byte earlier is
        // in the same function here, too, since none of these crash at their first instruction.
        let mut addr2line = Command::new("addr2line");
        let output = output_of(addr2line.arg("-fe").arg(program).arg(format!("{:#x}", offset - 1)));
        names.push(output.lines().next().unwrap().to_owned());
    }
    names
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn self_print() {
    let program = build("self_print", &[]);
    let text = output_of(&mut Command::new(&program));
    assert_eq!(functions(&program, &text), ["inner", "outer", "main", "_start"], "{text}");
    // Both ways find as many frames, and the addresses lie in the same function.
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.starts_with(&format!("{} addresses", rest.lines().count())), "{text}");
}

#[test]
fn sigprof_sampler() {
    let program = build("sigprof_sampler", &[]);
    let text = output_of(&mut Command::new(&program));
    let first = text.lines().next().unwrap();
    assert!(first.ends_with("of them on this stack:"), "{text}");
    assert_eq!(functions(&program, &text), ["spin", "main", "_start"], "{text}");
}

/// Runs the crash handler, which must not save the program.
fn crash(argument: &str) -> (PathBuf, String) {
    let program = build_crash_handler(argument);
    let output = Command::new(&program).arg(argument).output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{output:?}");
    let text = stderr(&output).to_owned();
    assert!(text.starts_with("crashed:\n"), "{text}");
    (program, text)
}

fn build_crash_handler(argument: &str) -> PathBuf {
    let source = workspace().join("examples/c/crash_handler.c");
    compile(&source, &format!("crash_handler_{argument}"), &[])
}

#[test]
fn crash_handler_after_a_wild_write() {
    let (program, text) = crash("wild");
    assert_eq!(functions(&program, &text), ["write_to_nowhere", "main", "_start"], "{text}");
}

#[test]
fn crash_handler_after_a_stack_overflow() {
    let (program, text) = crash("overflow");
    let names = functions(&program, &text);
    assert_eq!(names.first().unwrap(), "recurse", "{text}");
    assert!(text.contains(" frames of the same recursion\n"), "{text}");
    // Either end of the recursion is shown, not each of its thousands of frames.
    assert!(text.lines().count() < 20, "{text}");
    assert_eq!(names[names.len() - 2..], ["main", "_start"], "{text}");
}

#[test]
fn malloc_hook() {
    let hook = build("malloc_hook", &["-shared", "-fPIC"]);
    let source = scratch().join("asks.c");
    let text = "#include <stdlib.h>
        void *volatile block;
        __attribute__((noinline)) void ask(void) { block = malloc(1000); }
        int main(void) { for (int i = 0; i < 100; i++) ask(); return 0; }";
    fs::write(&source, text).unwrap();
    let program = scratch().join("asks");
    run(c_compiler().args(["-O1", "-fno-optimize-sibling-calls"]).arg(&source).arg("-o").arg(&program));
    let output = run(Command::new(&program).env("LD_PRELOAD", &hook));
    let text = stderr(&output);
    let first = text.split("bytes in").nth(1).unwrap_or_else(|| panic!("{text}"));
    assert!(text.starts_with("100000 bytes in 100 calls of malloc\n#0 "), "{text}");
    assert_eq!(functions(&hook, first), ["malloc"], "{text}");
    assert_eq!(functions(&program, first), ["ask", "main", "_start"], "{text}");
}

#[test]
fn paused_thread() {
    let program = build("paused_thread", &[]);
    let text = output_of(&mut Command::new(&program));
    assert_eq!(functions(&program, &text), ["wait_for_work", "worker"], "{text}");
}

#[test]
fn reused_addresses_get_new_stacks() {
    // Two plugins that differ in the sizes of their frames alone, so chosen that what holds in the
    // first leads in the second to a return address as well, but past one frame.
    let source = scratch().join("plugin.s");
    fs::write(
        &source,
        ".macro function name, size, target
         .globl \\name
         .type \\name, @function
         \\name:
             .cfi_startproc
             subq $\\size, %rsp
             .cfi_adjust_cfa_offset \\size
             call \\target
             addq $\\size, %rsp
             .cfi_adjust_cfa_offset -\\size
             ret
             .cfi_endproc
             .size \\name, . - \\name
         .endm
         function enter, 0x208, inner
         .hidden inner
         function inner, INNER, *%rdi
         .section .note.GNU-stack, \"\", @progbits\n",
    )
    .unwrap();
    for (name, inner) in [("plugin_large", "INNER=0x318"), ("plugin_small", "INNER=0x108")] {
        let library = scratch().join(format!("{name}.so"));
        let assembler = format!("-Wa,--defsym,{inner}");
        run(c_compiler().args(["-shared", &assembler]).arg(&source).arg("-o").arg(library));
    }
    let source = scratch().join("reload.c");
    fs::write(
        &source,
        r#"#include <assert.h>
           #include <cairn_capture.h>
           #include <dlfcn.h>
           #include <stdio.h>
           typedef unsigned (*enter)(cairn_stack_id (*)(void));
           static uintptr_t place;
           static size_t depth;
           static void run(const char *path) {
               void *handle = dlopen(path, RTLD_NOW);
               assert(handle);
               enter call = (enter)dlsym(handle, "enter");
               place = (uintptr_t)call;
               for (int again = 0; again < 3; again++) {
                   struct cairn_frame frames[16];
                   struct cairn_stop stop;
                   size_t count = cairn_stack_frames(call(cairn_capture), frames, 16, &stop);
                   assert(stop.kind == CAIRN_STOP_END_OF_STACK && count == depth + 3);
                   /* inner, enter, run, and main: whatever stood at these addresses before. */
                   assert(frames[0].address - place < 200 && frames[1].address - place < 200);
                   assert(frames[2].address - (uintptr_t)run < 1000);
               }
               assert(dlclose(handle) == 0);
           }
           int main(int count, char **paths) {
               int reused = 0;
               uintptr_t before = 0;
               /* Of main itself, as its callee sees it. */
               depth = cairn_stack_frames(cairn_capture(), NULL, 0, NULL);
               for (int round = 0; round < 20; round++) {
                   run(paths[1 + round % (count - 1)]);
                   reused += place == before;
                   before = place;
               }
               printf("%d\n", reused);
               return 0;
           }"#,
    )
    .unwrap();
    let program = compile(&source, "reload", &[]);
    let plugins = ["plugin_large.so", "plugin_small.so"].map(|name| scratch().join(name));
    let reused: u32 = output_of(Command::new(program).args(plugins)).trim().parse().unwrap();
    assert!(reused > 0, "the loader never used an address again: nothing was tested");
}

/// Captures whole stacks in a program of `gcc -static`, and in others that lack the header. They
/// equal those of programs with the header, also when the first capture comes from a constructor of
/// the program.
// Failed with: each stack ended at its first frame, "no unwind information".
#[test]
fn static_program_without_table_header_has_whole_stacks() {
    let source = scratch().join("headerless.c");
    fs::write(
        &source,
        r#"#include <cairn_capture.h>
           #include <signal.h>
           #include <unistd.h>
           __attribute__((noinline)) static void inner(void) { cairn_stack_print(cairn_capture(), 1); }
           __attribute__((noinline)) static void outer(void) { inner(); }
           __attribute__((constructor)) static void before_main(void) { inner(); write(1, "-\n", 2); }
           static void on_signal(int number, siginfo_t *info, void *context) {
               (void)number, (void)info;
               cairn_stack_print(cairn_capture_interrupted(context), 1);
           }
           __attribute__((noinline)) static void interrupted(void) { raise(SIGUSR1); }
           int main(void) {
               outer();
               write(1, "-\n", 2);
               struct sigaction action = {0};
               action.sa_sigaction = on_signal;
               action.sa_flags = SA_SIGINFO;
               sigaction(SIGUSR1, &action, 0);
               interrupted();
               return 0;
           }"#,
    )
    .unwrap();
    let cases: [(&str, &[&str], bool); 6] = [
        ("static", &["-static"], true),
        ("static_header", &["-static", "-Wl,--eh-frame-hdr"], true),
        ("static_pie", &["-static-pie", "-Wl,--no-eh-frame-hdr"], true),
        ("stripped", &["-static", "-Wl,--gc-sections"], false),
        ("one_segment", &["-static", "-Wl,-z,noseparate-code"], true),
        ("dynamic", &["-Wl,--no-eh-frame-hdr"], true),
    ];
    for (name, flags, is_named) in cases {
        let flags: Vec<&str> = flags.iter().copied().chain(["-Wno-unused-result"]).collect();
        let program = compile(&source, &format!("headerless_{name}"), &flags);
        let symbols = program.with_extension("symbols");
        fs::copy(&program, &symbols).unwrap();
        if !is_named {
            run(Command::new("strip").arg("--strip-all").arg(&program));
        }
        let text = output_of(&mut Command::new(&program));
        let stacks: Vec<Vec<String>> = text
            .split("-\n")
            .map(|text| {
                let text = text.replace(&*program.to_string_lossy(), &symbols.to_string_lossy());
                functions(&symbols, &text)
            })
            .collect();
        let [constructor, called, signal] = &stacks[..] else { panic!("{name}: {text}") };
        assert!(!text.contains("goes on"), "{name}: {text}");
        assert_eq!(constructor[..2], ["inner", "before_main"], "{name}: {text}");
        assert_eq!(called[..3], ["inner", "outer", "main"], "{name}: {text}");
        assert_eq!(called.last().unwrap(), "_start", "{name}: {text}");
        let at = signal.iter().position(|name| name == "interrupted");
        let at = at.unwrap_or_else(|| panic!("{name}: {text}"));
        assert_eq!(signal[at + 1], "main", "{name}: {text}");
    }
}
