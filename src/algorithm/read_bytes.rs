//! Little-endian numbers at the start of bytes, which are taken off them.

/// The end of the instants that states hold: arithmetic with periods cannot overflow before it.
const END_OF_INSTANTS: u64 = 1 << 56;

pub(super) fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    bytes.split_off(..4).and_then(|number| number.try_into().ok()).map(u32::from_le_bytes)
}

pub(super) fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    bytes.split_off(..8).and_then(|number| number.try_into().ok()).map(u64::from_le_bytes)
}

/// Takes an instant in µs, at which or until which a state counts.
pub(super) fn take_instant(bytes: &mut &[u8]) -> Option<u64> {
    take_u64(bytes).filter(|instant| *instant < END_OF_INSTANTS)
}
