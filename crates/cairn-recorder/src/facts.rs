//! Facts of the process when recording begins: `name=value` pairs, each with a NUL at its end.
//!
//! | name | value |
//! |---|---|
//! | `cairn` | version of this crate |
//! | `sample_bytes` | mean bytes between picked ones, when a part of the blocks is recorded |
//! | `mode` | `stream`, or `ring` for a recording of its last part only |
//! | `executable` | path of the program |
//! | `executable.build_id` | its GNU build id, in hexadecimal digits |
//! | `command` | the command line, its words separated by spaces |
//! | `argument` | one for each word of the command line, in order, where words hold spaces |
//! | `working_directory` | at the start |
//! | `parent` | number of the process that started this one; 0 if that is in no namespace of this one |
//! | `host`, `kernel` | as `uname -n` and `uname -r` print them |
//! | `page_bytes` | size of a page |
//! | `counter_hz` | frequency of the counter, where the processor states it |
//! | `env.NAME` | each requested variable that is set |
//!
//! Facts that do not fit are left out, and `facts.cut` states that.

use crate::build_id::{self, BUILD_ID_BYTES};
use crate::os::{self, File};

/// Writes facts into a buffer.
pub(crate) struct Facts<'a> {
    bytes: &'a mut [u8],
    used: usize,
    is_cut: bool,
}

/// The remark that facts were left out, for which room stays reserved.
const CUT: &[u8] = b"facts.cut=yes\0";

impl<'a> Facts<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0, is_cut: false }
    }

    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len() + value.len() + 2;
        let limit = self.bytes.len().saturating_sub(CUT.len());
        let place =
            self.bytes.get_mut(..limit).and_then(|bytes| bytes.get_mut(self.used..self.used + length));
        let Some(place) = place else {
            self.is_cut = true;
            return;
        };
        let (name_place, rest) = place.split_at_mut(name.len());
        name_place.copy_from_slice(name);
        rest[0] = b'=';
        rest[1..=value.len()].copy_from_slice(value);
        rest[value.len() + 1] = 0;
        self.used += length;
    }

    pub(crate) fn add_number(&mut self, name: &[u8], value: u32) {
        let mut digits = [0; 16];
        let mut number = os::PathText::new(&mut digits);
        number.push_number(value);
        let length = number.length();
        self.add(name, digits.get(..length).unwrap_or_default());
    }

    /// Returns the number of written bytes.
    pub(crate) fn finish(self) -> usize {
        match self.bytes.get_mut(self.used..self.used + CUT.len()) {
            Some(place) if self.is_cut => {
                place.copy_from_slice(CUT);
                self.used + CUT.len()
            }
            _ => self.used,
        }
    }

    /// Adds all facts of the [table](self); `scratch` holds texts meanwhile.
    pub(crate) fn add_all(&mut self, mode: &[u8], environment: &[u8], scratch: &mut [u8]) {
        self.add(b"cairn", env!("CARGO_PKG_VERSION").as_bytes());
        self.add(b"mode", mode);
        self.add(b"executable", os::read_link(c"/proc/self/exe", scratch));
        self.add_build_id();
        let length = os::working_directory(scratch);
        self.add(b"working_directory", scratch.get(..length).unwrap_or_default());
        self.add_number(b"parent", os::parent_id());
        self.add_system();
        self.add_environment(environment, scratch);
        self.add_arguments(scratch);
    }

    fn add_build_id(&mut self) {
        // The program headers lie in the first page of the program, behind its ELF header.
        // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
        let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
        let start = headers & !0xfff;
        // The field e_type is 2 for a program at fixed addresses, whose bias is 0, and 3 for
        // others.
        let mut kind = [0; 2];
        if cairn_capture::read_own_memory(start + 16, &mut kind) != 2 {
            return;
        }
        let bias = if kind == [2, 0] { 0 } else { start };
        let mut place = [0_u8; BUILD_ID_BYTES];
        let found = build_id::at(start, bias, &mut place);
        let mut digits = [0_u8; 2 * BUILD_ID_BYTES];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(found) {
            pair[0] = HEXADECIMAL[usize::from(byte >> 4)];
            pair[1] = HEXADECIMAL[usize::from(byte & 15)];
        }
        self.add(b"executable.build_id", digits.get(..found.len() * 2).unwrap_or_default());
    }

    fn add_system(&mut self) {
        let mut name = core::mem::MaybeUninit::<libc::utsname>::zeroed();
        // SAFETY: initialised with zeros, which are a value of the type; `uname` writes one
        // structure.
        let name = unsafe {
            libc::uname(name.as_mut_ptr());
            name.assume_init()
        };
        self.add(b"host", bytes_of(&name.nodename));
        self.add(b"kernel", bytes_of(&name.release));
        // SAFETY: `getauxval` only reads the auxiliary vector, which exists in every process.
        let page_bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) };
        self.add_number(b"page_bytes", page_bytes as u32);
        if let Some(hz) = crate::clock::stated_hz().and_then(|hz| u32::try_from(hz).ok()) {
            self.add_number(b"counter_hz", hz);
        }
    }

    /// Adds the variables of these names, which commas separate.
    fn add_environment(&mut self, names: &[u8], scratch: &mut [u8]) {
        if names.is_empty() {
            return;
        }
        let Ok(file) = File::open(c"/proc/self/environ", libc::O_RDONLY, 0) else { return };
        let all = file.read_all(scratch);
        for variable in all.split(|&byte| byte == 0) {
            let Some(end) = variable.iter().position(|&byte| byte == b'=') else { continue };
            let (name, value) =
                (variable.get(..end).unwrap_or_default(), variable.get(end + 1..).unwrap_or_default());
            if names.split(|&byte| byte == b',').any(|wanted| wanted == name) {
                let mut full = [0_u8; 128];
                let length = name.len() + PREFIX.len();
                if let Some(place) = full.get_mut(..length) {
                    place[..PREFIX.len()].copy_from_slice(PREFIX);
                    place[PREFIX.len()..].copy_from_slice(name);
                    self.add(place, value);
                }
            }
        }
    }

    fn add_arguments(&mut self, scratch: &mut [u8]) {
        let Ok(file) = File::open(c"/proc/self/cmdline", libc::O_RDONLY, 0) else { return };
        let all = file.read_all(scratch);
        // The last argument has a NUL at its end too, unless the line was cut.
        let end = all.len() - usize::from(all.last() == Some(&0));
        let all = all.get_mut(..end).unwrap_or_default();
        if all.contains(&b' ') {
            all.split(|&byte| byte == 0).for_each(|argument| self.add(b"argument", argument));
        }
        all.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
        self.add(b"command", all);
    }
}

const PREFIX: &[u8] = b"env.";
const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";

fn bytes_of(field: &[libc::c_char]) -> &[u8] {
    // SAFETY: `c_char` has the size of `u8`, and any byte is a value of both.
    let bytes = unsafe { core::slice::from_raw_parts(field.as_ptr().cast::<u8>(), field.len()) };
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}
