//! Compressed input that unpacks to far more than it is: each reader refuses it with the numbers
//! and the option that raises the limit, and reads it when the option is given.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Each unpacks to a little more than this.
const BOMB_BYTES: usize = 4 << 20;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bombs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    fn cairn(&self, arguments: &[&str]) -> (Output, String) {
        let output =
            Command::new(env!("CARGO_BIN_EXE_cairn")).args(arguments).current_dir(&self.0).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output, errors)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(plain).unwrap();
    packed.finish().unwrap()
}

fn zstd(plain: &[u8]) -> Vec<u8> {
    zstd::encode_all(plain, 1).unwrap()
}

fn lz4(plain: &[u8]) -> Vec<u8> {
    let mut packed = lz4_flex::frame::FrameEncoder::new(Vec::new());
    packed.write_all(plain).unwrap();
    packed.finish().unwrap()
}

/// Profiles of other tools that contain nothing to store, so that only their length counts.
fn profiles() -> [(&'static str, Vec<u8>); 3] {
    let heaptrack = format!("v 10400 3\n{}", "c 0\n".repeat(BOMB_BYTES / 4));
    // The same time again and again.
    let pprof = [&[0x0a, 4, 8, 1, 16, 2][..], &[0x48, 0].repeat(BOMB_BYTES / 2)].concat();
    let firefox = format!(
        "{{\"meta\":{{\"preprocessedProfileVersion\":48}},{}\"threads\":[]}}",
        " ".repeat(BOMB_BYTES)
    );
    [("heaptrack", heaptrack.into_bytes()), ("pprof", pprof), ("firefox", firefox.into_bytes())]
}

// Failed with: all of it was read, for more than a minute where it was 20 GiB.
#[test]
fn profiles_that_unpack_too_far_are_refused() {
    let directory = Directory::new("profiles");
    for (name, plain) in profiles() {
        for (compressor, packed) in [("gz", gzip(&plain)), ("zst", zstd(&plain))] {
            let file = format!("{name}.{compressor}");
            directory.write(&file, &packed);
            for command in [&["report"][..], &["flame", "-o", "-"], &["export", "--to", "csv", "-o", "-"]] {
                let arguments = [command, &[&file, "--max-unpacked", "1MiB"]].concat();
                let (output, errors) = directory.cairn(&arguments);
                let expected =
                    format!("{file}: the {} file would unpack to more than 1 MiB (", format_of(name));
                assert!(errors.contains(&expected), "{arguments:?}: {errors}");
                assert!(
                    errors.contains("times its size); raise the limit with --max-unpacked SIZE"),
                    "{errors}"
                );
                assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            }
            // The file may be wrong otherwise, which does not matter here; the default limit is not
            // reached.
            for limit in [&[][..], &["--max-unpacked", "1GiB"]] {
                let (_, errors) = directory.cairn(&[&["report", &file], limit].concat());
                assert!(!errors.contains("--max-unpacked"), "{file}: {errors}");
            }
        }
    }
}

fn format_of(name: &str) -> &str {
    match name {
        "firefox" => "Firefox Profiler",
        name => name,
    }
}

// Failed with: 20 GiB in the directory for temporary files.
#[test]
fn cores_that_unpack_too_far_are_refused() {
    let directory = Directory::new("cores");
    let mut plain = b"\x7fELF\x02\x01\x01".to_vec();
    plain.resize(BOMB_BYTES, b'A');
    for (compressor, packed) in [("gz", gzip(&plain)), ("zst", zstd(&plain)), ("lz4", lz4(&plain))] {
        let file = format!("core.{compressor}");
        directory.write(&file, &packed);
        let raw = format!("{file}@0x1000");
        for given in [&[file.as_str()][..], &["--raw", &raw]] {
            let (output, errors) = directory.cairn(&[&["core", "--max-unpacked", "1MiB"], given].concat());
            assert!(errors.contains(&format!("{file}: would unpack to more than 1 MiB (")), "{errors}");
            assert!(errors.contains("raise the limit with --max-unpacked SIZE"), "{errors}");
            assert_eq!(output.status.code(), Some(1), "{errors}");
            let (_, errors) = directory.cairn(&[&["core"], given].concat());
            assert!(!errors.contains("--max-unpacked"), "{errors}");
        }
    }
    // No unpacked bytes are left.
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 3);
}

// Failed with: 16 MiB of each of 24 sections, and more than half a gigabyte together, of a file of
// some kilobytes.
#[test]
fn debug_sections_that_unpack_too_far_are_refused() {
    let directory = Directory::new("sections");
    let plain = vec![0; 12 << 20];
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(&plain).unwrap();
    for (compressor, kind, packed) in [("zlib", 1_u32, zlib.finish().unwrap()), ("zstd", 2, zstd(&plain))] {
        // The header of a compressed section: its kind, its size, its alignment.
        let mut section = [&kind.to_le_bytes()[..], &[0; 4], &(plain.len() as u64).to_le_bytes()].concat();
        section.extend(1_u64.to_le_bytes());
        section.extend(&packed);
        directory.write("section", &section);
        let program = directory.0.join(compressor);
        let source = directory.0.join("it.s");
        // The assembler compresses nothing by itself when the section says that it is compressed.
        let names = ["info", "abbrev", "line", "str", "ranges", "addr", "aranges", "line_str"];
        let text: String = names
            .iter()
            .map(|name| format!(".section .debug_{name},\"\",@progbits\n.incbin \"section\"\n"))
            .collect();
        fs::write(&source, format!(".globl _start\n.text\n_start: ret\n{text}")).unwrap();
        let built = Command::new("cc")
            .args(["-nostdlib", "-static", "-Wl,--build-id=none", "-o"])
            .arg(&program)
            .arg(&source)
            .current_dir(&directory.0)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        mark_compressed(&program);
        let (_, errors) = directory.cairn(&["symbolize", "--no-cache", "-e", compressor, "0x1000"]);
        assert!(
            errors.contains("its debug information would unpack to more than 64 MiB ("),
            "{compressor}: {errors}"
        );
        assert!(errors.contains("raise the limit with --max-unpacked SIZE"), "{errors}");
        let (_, errors) = directory.cairn(&[
            "symbolize",
            "--no-cache",
            "--max-unpacked",
            "1GiB",
            "-e",
            compressor,
            "0x1000",
        ]);
        assert!(!errors.contains("--max-unpacked"), "{compressor}: {errors}");
    }
}

/// Sets SHF_COMPRESSED in the header of each debug section.
fn mark_compressed(path: &Path) {
    const COMPRESSED: u8 = 8;
    let mut bytes = fs::read(path).unwrap();
    let word = |bytes: &[u8], at: usize, length: usize| {
        bytes[at..at + length].iter().rev().fold(0_usize, |value, &byte| value << 8 | usize::from(byte))
    };
    let (headers, count, names) = (word(&bytes, 0x28, 8), word(&bytes, 0x3c, 2), word(&bytes, 0x3e, 2));
    let names = word(&bytes, headers + names * 64 + 0x18, 8);
    for header in (0..count).map(|index| headers + index * 64) {
        let name = names + word(&bytes, header, 4);
        if bytes[name..].starts_with(b".debug_") {
            bytes[header + 9] |= COMPRESSED;
        }
    }
    fs::write(path, bytes).unwrap();
}

// Failed with: no word of it; the names were missing.
#[test]
fn mini_debug_file_that_unpacks_too_far_is_refused() {
    let directory = Directory::new("mini-debug");
    fs::write(directory.0.join("it.c"), "int main(void) { for (;;) __builtin_ia32_pause(); }").unwrap();
    directory.write("plain", &vec![0; 64 << 20]);
    let script = "command -v xz >/dev/null || exit 77; xz -T1 plain && cc -O0 -o it it.c && strip it \
                  && objcopy --add-section .gnu_debugdata=plain.xz it";
    let built = Command::new("sh").args(["-c", script]).current_dir(&directory.0).output().unwrap();
    if built.status.code() == Some(77) {
        let _ = writeln!(std::io::stderr(), "skipped: there is no xz here");
        return;
    }
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut process = Command::new(directory.0.join("it")).spawn().unwrap();
    let id = process.id().to_string();
    let (_, refused) = directory.cairn(&["snapshot", "--no-cache", &id]);
    let (_, allowed) = directory.cairn(&["snapshot", "--no-cache", "--max-unpacked", "1GiB", &id]);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(refused.contains("its section .gnu_debugdata would unpack to more than 8 MiB ("), "{refused}");
    assert!(refused.contains("raise the limit with --max-unpacked SIZE"), "{refused}");
    assert!(!allowed.contains("--max-unpacked"), "{allowed}");
}
