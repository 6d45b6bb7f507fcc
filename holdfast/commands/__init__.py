"""One module per command of `holdfast`: add_parser(subparsers) declares its options, main(args) does it."""
