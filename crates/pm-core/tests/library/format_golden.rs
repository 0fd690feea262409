//! Golden bytes of a pool: a change of the format requires a change of this test or of its golden files.

use pm_core::{Persist, Pmem, Pool, PoolOptions, Region, Uuid};

#[derive(Clone, Copy, Persist)]
#[repr(C)]
struct Pair {
    first: u64,
    second: u64,
}

fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn pool_bytes_match_golden_files() {
    let uuid = Uuid::from_bytes(*b"0123456789abcdef");
    let options = PoolOptions::new().uuid(uuid).created_s(1_000_000_000);
    let pool = Pool::format(Region::anonymous(1 << 16).unwrap(), &options).unwrap();
    pool.scope(|pm| {
        let pair = pm.write(pm.claim(8192).unwrap(), &Pair { first: 1, second: 2 });
        pm.set_root("pair", &pm.fence(pm.flush(pair)).unwrap()).unwrap();
    });
    let mut image = vec![0; 1 << 16];
    pool.pmem().load(0, &mut image);

    assert_eq!(hex(&image[..112]), include_str!("golden/header.hex").trim_end());
    assert!(image[112..4092].iter().all(|&byte| byte == 0), "reserved bytes are zero");
    assert_eq!(hex(&image[4092..4096]), include_str!("golden/header_crc.hex").trim_end());
    assert_eq!(hex(&image[4096..4160]), include_str!("golden/root.hex").trim_end());
    let free = include_str!("golden/root_free.hex").trim_end();
    assert!(image[4160..8192].chunks(64).all(|slot| hex(slot) == free), "free slots have golden bytes");
    assert_eq!(hex(&image[8192..8208]), "01000000000000000200000000000000");
    assert!(image[8208..(1 << 16) - 4096].iter().all(|&byte| byte == 0), "the rest of the data area is zero");
    assert!(image[(1 << 16) - 4096..] == image[..4096], "the backup equals the header");
}
