#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &[u8])| {
    let (revision, bytes) = input;
    if let Some(written) = belay_store::fuzzing::read_and_write_record(revision, bytes) {
        assert_eq!(written, bytes);
    }
});
