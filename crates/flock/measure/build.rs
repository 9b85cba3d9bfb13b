fn main() {
    build_info::emit(env!("CARGO_PKG_VERSION"));
}
