//! A yardstick for the Compact Backtrace Format: the rule of its document, written
//! plainly, one byte at a time.
//!
//! Swift's own encoder needs a Swift compiler, which this harness does not ask for. This is **not**
//! that encoder; it does what the rule says in the most direct way (an iterator of bytes in, a
//! growing vector out), so that the figures show what the care taken in `cairn_wire::cbf` buys. It
//! writes the bytes of `cairn_format`'s default dialect, and the harness checks that.

use cairn_format::AbsoluteAddress;

/// Operand bytes of the shortest two's complement form of `value`.
fn operand_bytes(value: u64) -> u32 {
    let mut bytes = 8;
    while bytes > 1 {
        let cut = 64 - 8 * (bytes - 1);
        if ((value << cut) as i64 >> cut) as u64 != value {
            break;
        }
        bytes -= 1;
    }
    bytes
}

/// Appends the 64-bit return addresses `addresses` to `output` as one record.
pub(crate) fn encode(addresses: &[AbsoluteAddress], output: &mut Vec<u8>) {
    output.push(0x02);
    let mut previous = None;
    let mut repeats = 0_u64;
    for address in addresses.iter().map(|address| address.value()) {
        if previous == Some(address) {
            repeats += 1;
            continue;
        }
        put_repeats(&mut repeats, output);
        let delta = address.wrapping_sub(previous.unwrap_or(0));
        let (absolute_bytes, delta_bytes) = (operand_bytes(address), operand_bytes(delta));
        if previous.is_none() || absolute_bytes < delta_bytes {
            output.push(0x28 | (absolute_bytes - 1) as u8);
            put_operand(address, absolute_bytes, output);
        } else {
            output.push(0x20 | (delta_bytes - 1) as u8);
            put_operand(delta, delta_bytes, output);
        }
        previous = Some(address);
    }
    put_repeats(&mut repeats, output);
    output.push(0x00);
}

fn put_repeats(repeats: &mut u64, output: &mut Vec<u8>) {
    match *repeats {
        0 => {}
        1..=8 => output.push(0x80 | (*repeats - 1) as u8),
        many => {
            let mut bytes = 8;
            while bytes > 1 && many >> (8 * (bytes - 1)) == 0 {
                bytes -= 1;
            }
            output.push(0x88 | (bytes - 1) as u8);
            put_operand(many, bytes, output);
        }
    }
    *repeats = 0;
}

fn put_operand(value: u64, bytes: u32, output: &mut Vec<u8>) {
    for place in (0..bytes).rev() {
        output.push((value >> (8 * place)) as u8);
    }
}

/// Calls `visit` with every address of the record in `bytes`. Returns false if [`encode`] did not
/// write it.
pub(crate) fn decode(bytes: impl IntoIterator<Item = u8>, mut visit: impl FnMut(u64)) -> bool {
    let mut bytes = bytes.into_iter();
    if bytes.next() != Some(0x02) {
        return false;
    }
    let mut address = 0_u64;
    while let Some(code) = bytes.next() {
        match code {
            0x00 => return true,
            0x20..=0x2f => {
                let Some(operand) = take_operand(code & 7, &mut bytes, true) else { return false };
                address = if code & 8 != 0 { operand } else { address.wrapping_add(operand) };
                visit(address);
            }
            0x80..=0x8f => {
                let repeats = if code & 8 != 0 {
                    let Some(repeats) = take_operand(code & 7, &mut bytes, false) else { return false };
                    repeats
                } else {
                    u64::from(code & 7) + 1
                };
                for _ in 0..repeats {
                    visit(address);
                }
            }
            _ => return false,
        }
    }
    false
}

fn take_operand(count_less_one: u8, bytes: &mut impl Iterator<Item = u8>, signed: bool) -> Option<u64> {
    let first = bytes.next()?;
    let mut value = if signed { i64::from(first as i8) as u64 } else { u64::from(first) };
    for _ in 0..count_less_one {
        value = value << 8 | u64::from(bytes.next()?);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_rule_round_trips_widths_and_runs() {
        let addresses = [0x7f, 0x80, 0x80, 0x7fff_ffff_f000, 0x40_0000, u64::MAX, u64::MAX, 1 << 63];
        let long_run: Vec<u64> = addresses.iter().copied().chain([5; 300]).collect();
        let mut bytes = Vec::new();
        encode(&long_run.iter().copied().map(AbsoluteAddress::new).collect::<Vec<_>>(), &mut bytes);
        let mut read = Vec::new();
        assert!(decode(bytes.iter().copied(), |address| read.push(address)));
        assert_eq!(read, long_run);
        assert!(!decode(bytes[..bytes.len() - 1].iter().copied(), |_| ()));
    }
}
