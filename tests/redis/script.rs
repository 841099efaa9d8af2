//! The files of the script, on a real server.

use std::fs;
use std::path::Path;

use deadpool_redis::redis::cmd;
use support::redis_server::RedisServer;

#[tokio::test]
async fn each_file_of_the_script_loads_on_its_own() {
    let server = RedisServer::start();
    let mut connection = server.connection().await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/store/redis/lua");
    for file in fs::read_dir(folder).expect("the folder of the script") {
        let path = file.expect("a file").path();
        let text = fs::read(&path).expect("its text");
        let load = "local _, fault = loadstring(ARGV[1]) return fault or ''";
        let fault: String = cmd("EVAL").arg(load).arg(0).arg(text).query_async(&mut connection).await.expect("a reply");
        assert_eq!(fault, "", "{}", path.display());
    }
}
