// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title A well-behaved contract wallet (ERC-1271): what its owner's key signed, it signed.
contract OwnedWallet {
    address public immutable owner;

    constructor(address owner_) {
        owner = owner_;
    }

    receive() external payable {}

    function execute(address to, uint256 value, bytes calldata payload) external returns (bytes memory) {
        require(msg.sender == owner, "OwnedWallet: not the owner");
        (bool ok, bytes memory answer) = to.call{value: value}(payload);
        require(ok, "OwnedWallet: the call failed");
        return answer;
    }

    function isValidSignature(bytes32 digest, bytes calldata signature) external view returns (bytes4) {
        if (signature.length != 65) return 0xffffffff;
        address recovered =
            ecrecover(digest, uint8(signature[64]), bytes32(signature[:32]), bytes32(signature[32:64]));
        return recovered != address(0) && recovered == owner ? bytes4(0x1626ba7e) : bytes4(0xffffffff);
    }
}

/// @title Makes such wallets at addresses known before they stand (CREATE2), as ERC-6492 needs it.
contract OwnedWalletFactory {
    function create(address owner, bytes32 salt) external returns (address) {
        return address(new OwnedWallet{salt: salt}(owner));
    }

    function addressOf(address owner, bytes32 salt) external view returns (address) {
        bytes32 codeHash = keccak256(abi.encodePacked(type(OwnedWallet).creationCode, abi.encode(owner)));
        return address(uint160(uint256(keccak256(abi.encodePacked(hex"ff", address(this), salt, codeHash)))));
    }
}
