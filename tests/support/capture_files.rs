//! Capture files of every format, made of given frames 1 ms apart.

/// A classic capture file; frames are cut at `snap` bytes.
pub fn pcap(frames: &[Vec<u8>], big_endian: bool, nanoseconds: bool, link: u32, snap: usize) -> Vec<u8> {
    let u32_of = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let u16_of = |value: u16| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = Vec::new();
    file.extend(u32_of(if nanoseconds { 0xA1B2_3C4D } else { 0xA1B2_C3D4 }));
    file.extend(u16_of(2));
    file.extend(u16_of(4));
    for word in [0, 0, snap as u32, link] {
        file.extend(u32_of(word));
    }
    for (index, frame) in frames.iter().enumerate() {
        let unit = if nanoseconds { 1_000_000 } else { 1_000 };
        let kept = frame.len().min(snap);
        for word in [1_700_000_000, index as u32 * unit, kept as u32, frame.len() as u32] {
            file.extend(u32_of(word));
        }
        file.extend(&frame[..kept]);
    }
    file
}

/// A pcapng file whose times count `units_per_ms`, as `if_tsresol` (none: microseconds) says.
pub fn pcapng(frames: &[Vec<u8>], resolution: Option<u8>, units_per_ms: u64) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = (12 + body.len()) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    };
    let mut section = 0x1A2B_3C4Du32.to_le_bytes().to_vec();
    section.extend([1, 0, 0, 0]);
    section.extend((-1i64).to_le_bytes());
    let mut file = block(0x0A0D_0D0A, &section);
    let mut interface = vec![1, 0, 0, 0, 0, 0, 0, 0];
    if let Some(resolution) = resolution {
        interface.extend([9, 0, 1, 0, resolution, 0, 0, 0, 0, 0, 0, 0]);
    }
    file.extend(block(1, &interface));
    for (index, frame) in frames.iter().enumerate() {
        let time = 1_700_000_000_000 * units_per_ms + index as u64 * units_per_ms;
        let mut body = Vec::new();
        for word in [0, (time >> 32) as u32, time as u32, frame.len() as u32, frame.len() as u32] {
            body.extend(word.to_le_bytes());
        }
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    file
}
